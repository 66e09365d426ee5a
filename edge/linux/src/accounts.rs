//! Users and groups by name, from wherever the system keeps them.

use std::io;

use nix::unistd::{Group, User};

/// The number of the user whose name or number `account` is; `None` when there is no such name.
///
/// A number needs no account: services may run under numbers alone.
pub fn user_id(account: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = account.parse() {
        return Ok(Some(number));
    }
    Ok(User::from_name(account)?.map(|user| user.uid.as_raw()))
}

/// The number of the group whose name or number `account` is; `None` when there is no such name.
pub fn group_id(account: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = account.parse() {
        return Ok(Some(number));
    }
    Ok(Group::from_name(account)?.map(|group| group.gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        assert_eq!(user_id("root").unwrap(), Some(0));
        assert_eq!(group_id("root").unwrap(), Some(0));
        assert_eq!(user_id("4242").unwrap(), Some(4242));
        assert_eq!(user_id("no-such-user-here").unwrap(), None);
        assert_eq!(group_id("no-such-group-here").unwrap(), None);
    }
}
