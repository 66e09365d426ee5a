//! `multiway join`: belongs to a relay from now on.

use multiway_engine::bond::invite::Invite;
use multiway_engine::bond::membership;

use crate::args;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Checks an invite and keeps it.
pub(crate) fn join(args: &args::Join) -> Result<(), Failure> {
    let invite: Invite = args.invite.parse().map_err(|error| Failure::new(Exit::Usage, error))?;
    let now = multiway_engine::relay::users::unix_seconds();
    if invite.token.token().is_expired_at(now) {
        let failure = Failure::new(Exit::Usage, "this invite has expired");
        return Err(failure.help("Ask the relay's operator for a new one."));
    }
    let file = args.membership.clone().or_else(membership::default_file);
    let file = file.ok_or_else(|| {
        let failure = Failure::new(Exit::Disk, "there is no place to keep the invite: HOME is not set");
        failure.help("Name a file with --membership.")
    })?;
    membership::store(&file, &invite).map_err(|error| Failure::new(Exit::Disk, error))?;
    let key = invite.pin.to_string();
    let text = format!(
        "joined the relay {} (key {}...) as {:?}\n`multiway up` uses it from now on; a daemon that runs notices by itself.\n",
        invite.address,
        &key[..16],
        invite.token.token().name,
    );
    output::text(&text).map(drop)
}
