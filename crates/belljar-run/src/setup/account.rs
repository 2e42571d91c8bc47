//! Finds a user of the machine by name or number.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::files;

/// A user that the machine is prepared for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AccountError {
    #[error("there is no user \"{0}\" on this machine")]
    Unknown(String),
    #[error("{0} is root, who needs no preparation; name the user with --user NAME")]
    Root(String),
}

impl Account {
    /// By name or number: `/etc/passwd` first, then what the machine's `getent` knows.
    pub fn find(who: &str) -> Result<Self, AccountError> {
        Self::find_at(Path::new("/"), who)
    }

    pub(super) fn find_at(root: &Path, who: &str) -> Result<Self, AccountError> {
        let passwd = files::read(&files::below(root, Path::new("/etc/passwd")));
        let passwd = passwd.ok().flatten().unwrap_or_default();
        let found = in_passwd(&passwd, who);
        let found = found.or_else(|| in_passwd(&asked(root, who)?, who));
        let account = found.ok_or_else(|| AccountError::Unknown(who.to_owned()))?;
        match account.uid {
            0 => Err(AccountError::Root(account.name)),
            _ => Ok(account),
        }
    }
}

/// `name:password:uid:gid:…`
fn in_passwd(passwd: &str, who: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-@$\\+".contains(c);
        let usable = !name.is_empty() && name.chars().all(is_plain);
        let account =
            Account { name: name.to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()? };
        (usable && (name == who || uid == who)).then_some(account)
    })
}

/// A static executable cannot ask the machine's other sources of users itself.
fn asked(root: &Path, who: &str) -> Option<String> {
    let getent = PathBuf::from("/usr/bin/getent");
    if root != Path::new("/") || !getent.is_file() {
        return None;
    }
    let mut getent = Command::new(getent);
    let asked = getent.args(["passwd", "--", who]).stdin(Stdio::null()).output().ok()?;
    String::from_utf8(asked.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\n\
                          bad name:x:7:7::/:/bin/sh\nbroken:x:many:1::/:/bin/sh\n";

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let ann = Some(Account { name: "ann".to_owned(), uid: 1000, gid: 100 });
        assert_eq!(in_passwd(PASSWD, "ann"), ann);
        assert_eq!(in_passwd(PASSWD, "1000"), ann);
        assert_eq!(in_passwd(PASSWD, "an"), None);
        assert_eq!(in_passwd(PASSWD, "bad name"), None, "it would be written into files");
        assert_eq!(in_passwd(PASSWD, "broken"), None);
    }

    #[test]
    fn root_is_refused() {
        assert_eq!(Account::find("root"), Err(AccountError::Root("root".to_owned())));
        let unknown = AccountError::Unknown("no-such-user".to_owned());
        assert_eq!(Account::find("no-such-user"), Err(unknown));
    }
}
