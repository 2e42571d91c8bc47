//! Finds the ids of the user that an image's programs are meant to have.

use std::io;
use std::path::Path;

use belljar_spec::text::escape;

use crate::store::HeldImage;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
const MAX_FILE: u64 = 1 << 20;
/// What the kernel takes for "leave it as it is".
const NO_ID: u32 = u32::MAX;

/// An image's user in numbers. Never root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: u32,
    pub gid: u32,
}

/// The user of an image cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum ImageUserError {
    #[error("the image's user \"{0}\" is neither a number nor in its {PASSWD}")]
    Unknown(String),
    #[error("the image's group \"{0}\" is neither a number nor in its {GROUP}")]
    UnknownGroup(String),
    #[error("the image's user \"{0}\" is a name, and the image is not unpacked yet")]
    NotUnpacked(String),
    #[error("cannot read {file} of the image")]
    Read {
        file: &'static str,
        #[source]
        error: io::Error,
    },
}

/// What an image says about users and groups.
#[derive(Debug, Default)]
struct Accounts {
    passwd: String,
    group: String,
}

/// The user that an image names, if that is another one than root. Without an unpacked image only numbers are known.
pub fn image_user(
    text: &str,
    image: Option<&HeldImage>,
) -> Result<Option<ImageUser>, ImageUserError> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    if matches!(user, "" | "root") || user.parse() == Ok(0_u32) {
        return Ok(None);
    }
    let accounts = match image {
        None if user.parse::<u32>().is_err() => {
            return Err(ImageUserError::NotUnpacked(escape(user.as_bytes())));
        }
        None => Accounts::default(),
        Some(image) => Accounts { passwd: read(image, PASSWD)?, group: read(image, GROUP)? },
    };
    find(user, group, &accounts)
}

fn read(image: &HeldImage, file: &'static str) -> Result<String, ImageUserError> {
    let content = image
        .read_small_file(Path::new(file), MAX_FILE)
        .map_err(|error| ImageUserError::Read { file, error })?;
    Ok(String::from_utf8_lossy(&content.unwrap_or_default()).into_owned())
}

fn find(user: &str, group: &str, accounts: &Accounts) -> Result<Option<ImageUser>, ImageUserError> {
    // `name:password:uid:gid:…`
    let lines = || accounts.passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let number = user.parse::<u32>().ok();
    let is_meant = |fields: &Vec<&str>| match number {
        Some(uid) => fields.get(2).and_then(|field| field.parse().ok()) == Some(uid),
        None => fields.first() == Some(&user),
    };
    let found = lines().find(is_meant);
    let field = |at: usize| found.as_ref()?.get(at)?.parse::<u32>().ok();
    let uid = number
        .or_else(|| field(2))
        .ok_or_else(|| ImageUserError::Unknown(escape(user.as_bytes())))?;
    if uid == 0 {
        return Ok(None);
    }
    if uid == NO_ID {
        return Err(ImageUserError::Unknown(escape(user.as_bytes())));
    }
    let gid = match group {
        "" => field(3),
        group => Some(group_id(group, accounts)?),
    };
    let gid = gid.filter(|gid| *gid != NO_ID);
    // The group of root is nobody's own: a user without a group has one of the same number.
    Ok(Some(ImageUser { uid, gid: gid.filter(|gid| *gid != 0).unwrap_or(uid) }))
}

fn group_id(group: &str, accounts: &Accounts) -> Result<u32, ImageUserError> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    // `name:password:gid:members`
    let mut lines = accounts.group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = lines.find(|fields| fields.first() == Some(&group));
    let gid = found.and_then(|fields| fields.get(2)?.parse().ok());
    gid.ok_or_else(|| ImageUserError::UnknownGroup(escape(group.as_bytes())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn found(text: &str) -> Result<Option<(u32, u32)>, ImageUserError> {
        let accounts = Accounts {
            passwd: "root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:\nweb:x:33:34::/var/www:\nodd\n"
                .into(),
            group: "root:x:0:\nweb:x:34:\nother:x:50:web\n".into(),
        };
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        Ok(find(user, group, &accounts)?.map(|user| (user.uid, user.gid)))
    }

    #[test]
    fn names_and_numbers_are_found_as_docker_finds_them() {
        assert_eq!(found("web").unwrap(), Some((33, 34)));
        assert_eq!(found("33").unwrap(), Some((33, 34)));
        assert_eq!(found("web:other").unwrap(), Some((33, 50)));
        assert_eq!(found("web:7").unwrap(), Some((33, 7)));
        assert_eq!(found("4711").unwrap(), Some((4711, 4711)), "in no file");
        assert!(matches!(found("nobody-here"), Err(ImageUserError::Unknown(_))));
        assert!(matches!(found("4294967295"), Err(ImageUserError::Unknown(_))));
        assert_eq!(found("5:4294967295").unwrap(), Some((5, 5)));
        assert!(matches!(found("web:nothing"), Err(ImageUserError::UnknownGroup(_))));
    }

    #[test]
    fn root_by_whatever_name_is_no_user() {
        for text in ["", "0", "root", "0:0", "root:other", "00"] {
            assert_eq!(image_user(text, None).unwrap(), None, "{text}");
        }
        assert_eq!(found("toor").unwrap(), None);
        assert!(matches!(image_user("web", None), Err(ImageUserError::NotUnpacked(_))));
        assert_eq!(image_user("5:6", None).unwrap(), Some(ImageUser { uid: 5, gid: 6 }));
    }
}
