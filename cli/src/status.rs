//! `multiway status`: what the daemon sees and does.

use std::io::{self, IsTerminal};
use std::time::Duration;

use multiway_api::{STATUS_PATH, Status};

use crate::args;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::Written;
use crate::{output, render};

/// Time between two pictures of `--watch`.
const REFRESH: Duration = Duration::from_secs(1);

/// Moves to the top left corner.
const HOME: &str = "\x1b[H";
/// Clears to the end of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears to the end of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

/// Shows the daemon's status once, or again and again.
pub(crate) fn status(args: &args::Status) -> Result<(), Failure> {
    let client = Client::new(&args.control);
    if args.json {
        let status: Status = client.get(STATUS_PATH)?;
        return output::json_pretty(&status).map(drop);
    }
    if !args.watch {
        return output::text(&render::status(&client.get(STATUS_PATH)?)).map(drop);
    }
    let in_place = io::stdout().is_terminal();
    loop {
        let picture = render::status(&client.get(STATUS_PATH)?);
        let written = output::text(&if in_place { over_the_last(&picture) } else { picture })?;
        if written == Written::ReaderGone {
            return Ok(());
        }
        std::thread::sleep(REFRESH);
    }
}

/// Overwrites the last picture in place, which does not flicker as clearing first would.
fn over_the_last(picture: &str) -> String {
    let mut screen = String::from(HOME);
    for line in picture.lines() {
        screen.push_str(line);
        screen.push_str(CLEAR_LINE);
        screen.push('\n');
    }
    screen.push_str(CLEAR_BELOW);
    screen
}
