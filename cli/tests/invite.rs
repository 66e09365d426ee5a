//! What an invite looks like to a camera.

use assert_cmd::Command;
use rqrr::PreparedImage;

/// Pixels of a module's side.
const SCALE: usize = 4;

/// What a camera reads from a picture of half blocks, dark on light.
fn decoded(picture: &str) -> Vec<String> {
    let lines: Vec<Vec<char>> = picture.lines().map(|line| line.chars().collect()).collect();
    let width = lines.iter().map(Vec::len).max().unwrap_or(0);
    let is_dark = |x: usize, y: usize| match lines[y / 2].get(x) {
        Some('█') => true,
        Some('▀') => y.is_multiple_of(2),
        Some('▄') => !y.is_multiple_of(2),
        _ => false,
    };
    let pixel = |x: usize, y: usize| if is_dark(x / SCALE, y / SCALE) { 0 } else { 255 };
    let mut image = PreparedImage::prepare_from_greyscale(width * SCALE, lines.len() * 2 * SCALE, pixel);
    image.detect_grids().iter().map(|grid| grid.decode().expect("a code without faults").1).collect()
}

#[test]
fn the_code_of_an_invite_says_its_url() {
    let home = tempfile::tempdir().unwrap();
    let mut invite = Command::new(env!("CARGO_BIN_EXE_multiway"));
    invite.current_dir(home.path()).env_remove("MULTIWAY_LOG").args(["relay", "--state", "state", "invite"]);
    invite.args(["--address", "relay.example.org:443", "--name", "Ada", "--expires", "30d"]);
    let output = invite.args(["--limit", "50GB/month"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let url = text.lines().find(|line| line.starts_with("multiway://")).expect("its URL");
    let (picture, _) = text.split_once(url).expect("it is there");
    assert_eq!(decoded(picture), [url], "{text}");
}
