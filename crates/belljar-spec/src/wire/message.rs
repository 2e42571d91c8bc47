//! Control messages between the launcher and PID 1 of a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::WireError;
use crate::attest::{Attestation, BriefAttestation};
use crate::denied_call::DeniedCallCount;
use crate::outcome::{ExecFailure, ExitStatus};
use crate::plan::Rlimit;
use crate::runspec::User;
use crate::text::OsText;

/// The step of [`FromInit::SetupFailed`] at which the command's working directory could not be entered.
pub const ENTER_WORKDIR: &str = "enter the working directory";

/// The protocol versions that this build supports. The launcher brings PID 1 along, so both are of one build. All
/// frames after the first hello have [`FrameVersion::V2`](super::FrameVersion::V2).
pub const PROTOCOL_MIN: u32 = 2;
pub const PROTOCOL_MAX: u32 = 2;

/// The first message of all, under the opening key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherHello {
    pub min: u32,
    pub max: u32,
    pub run: String,
    /// Different at every launch, also of the same run.
    pub nonce: String,
    /// The frame key, in hexadecimal.
    pub key: String,
    /// Without a frame for this long PID 1 ends everything. `None` where the kernel reports the launcher's end.
    pub lease_ms: Option<u64>,
}

/// The response, under this launch's key: proof that the whole hello arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitHello {
    pub version: u32,
    pub run: String,
    pub nonce: String,
}

/// Numbers of streams that carry connections. Below them are those of commands.
pub const FIRST_CONNECT_STREAM: u32 = 0x4000_0000;
/// Chosen by PID 1, from here on.
pub const FIRST_ACCEPT_STREAM: u32 = 0x8000_0000;
/// Connections from inside that one channel carries at once; more wait to be accepted.
pub const MAX_CONNECTIONS: usize = 512;
/// Connections from the host; more wait to be accepted there.
pub const MAX_CONNECTS: usize = 128;

/// How every command of this sandbox is locked down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitSetup {
    pub user: User,
    pub rlimits: Vec<Rlimit>,
    pub filter: String,
    /// Everything else is read-only to Landlock, even where a mount is writable.
    pub writable: Vec<OsText>,
    /// Directories in which the attestation makes and removes a file.
    pub write_check: Vec<OsText>,
    /// PID 1 ends everything after this, should the launcher not have done so.
    pub deadline_ms: Option<u64>,
    /// Ports on loopback; PID 1 turns connections to them into streams. For backends where the launcher has no
    /// listening socket in the sandbox.
    #[serde(default)]
    pub listen: Vec<u16>,
}

/// Where a command's streams are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Stdio {
    /// Descriptors that PID 1 was started with: pipes, made by the launcher.
    Given { stdin: i32, stdout: i32, stderr: i32 },
    /// Streams of the channel.
    Streams { stdin: Option<u32>, stdout: u32, stderr: u32 },
    /// A terminal, made inside; one stream carries both directions.
    Pty { stream: u32, rows: u16, columns: u16 },
}

/// What a process inside becomes, once the gate has opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Work {
    Program {
        argv: Vec<OsText>,
    },
    /// Nothing: it only attests, for a sandbox that waits for its first command.
    Nothing,
    /// Belljar's code inside writes the tree at `path` to standard output, in the format of [`super::archive`].
    Pack {
        path: OsText,
    },
    /// Belljar's code inside unpacks the archive on standard input to `path`.
    Unpack {
        path: OsText,
        modes: UnpackModes,
        #[serde(default)]
        read_only: ReadOnlyFiles,
    },
    /// Belljar's code inside writes what `path` is, and what a directory holds, to standard output, in the format
    /// of [`super::archive::Entry::is_listed`].
    List {
        path: OsText,
    },
}

/// Which permissions unpacked files and directories get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnpackModes {
    /// The archive's, without what the usual umask takes away.
    Umask,
    /// The archive's: a tree that comes back must not differ from what was sent.
    Exact,
}

/// What becomes of a file that exists and that nobody may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadOnlyFiles {
    #[default]
    Replace,
    Refuse,
}

/// How much a process reads back before the gate opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttestationKind {
    Full,
    /// What can differ between two commands of one sandbox.
    Brief,
}

/// Whether a command's descendants can be ended without ending anything else inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descendants {
    /// A child of PID 1; its orphans are PID 1's.
    Loose,
    /// Its parent is a shim, a child of PID 1 that adopts the orphans.
    Tracked,
    /// The same, and they end with the command: its exit is reported when no descendant is left.
    Bound,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Chosen by the launcher; 0 is the run's main command.
    pub exec: u32,
    pub work: Work,
    pub env: BTreeMap<String, OsText>,
    pub workdir: OsText,
    pub stdio: Stdio,
    pub depth: AttestationKind,
    pub descendants: Descendants,
}

impl ExecRequest {
    /// The stream that carries the files of a copy: its reader widens it.
    pub fn stream_of_files(&self) -> Option<u32> {
        match (&self.work, &self.stdio) {
            (Work::Unpack { .. }, Stdio::Streams { stdin, .. }) => *stdin,
            (Work::Pack { .. }, Stdio::Streams { stdout, .. }) => Some(*stdout),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ToInit {
    Hello(LauncherHello),
    Setup(InitSetup),
    Exec(ExecRequest),
    /// The attestation was good: become the command.
    Go {
        exec: u32,
    },
    /// The process at the gate is not needed: it ends, and PID 1 reports nothing about it.
    Dismiss {
        exec: u32,
    },
    Signal {
        exec: u32,
        signal: i32,
    },
    /// End this command and everything it started; only for tracked descendants.
    KillTree {
        exec: u32,
    },
    Resize {
        exec: u32,
        rows: u16,
        columns: u16,
    },
    /// Send this signal to every process inside.
    SignalAll {
        signal: i32,
    },
    /// End everything now.
    Kill,
    /// Carries nothing; renews the lease.
    Alive,
    /// Connect to this port on the sandbox's loopback; this stream, with a number that the launcher chose, carries
    /// both directions. If the connection fails, both directions end.
    Connect {
        stream: u32,
        port: u16,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum FromInit {
    Hello(InitHello),
    Attested {
        exec: u32,
        attestation: Box<Attestation>,
    },
    AttestedBrief {
        exec: u32,
        attestation: Box<BriefAttestation>,
    },
    /// The lock-down failed; nothing of the command ran. The step [`ENTER_WORKDIR`] is about the request, not about the
    /// lock-down.
    SetupFailed {
        exec: u32,
        step: String,
        why: String,
    },
    Started {
        exec: u32,
    },
    ExecFailed {
        exec: u32,
        failure: ExecFailure,
    },
    Exited {
        exec: u32,
        status: ExitStatus,
    },
    /// PID 1's clock reached the deadline and ended the run.
    DeadlinePassed,
    /// Everything was asked to end, and nothing is left but PID 1.
    Quiet,
    /// A process connected to this port of [`InitSetup::listen`]; this stream, with a number that PID 1 chose, carries
    /// both directions.
    Accepted {
        stream: u32,
        port: u16,
    },
    /// System calls that the filter refused since the last such message. Only under [`TRACED_FILTER`].
    ///
    /// [`TRACED_FILTER`]: crate::denied_call::TRACED_FILTER
    CallsDenied {
        calls: Vec<DeniedCallCount>,
    },
}

/// The longest messages, read without the detour that `serde` makes for a tagged enum: it keeps a whole message in a
/// general form until it knows the tag, and an attestation is long and awaited. Both senders write the tag first; any
/// other order is read as well, by that detour.
mod tag_first {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    /// With the tag as a field, so that a second one is refused here too.
    #[derive(Deserialize)]
    pub(super) struct Attested<A> {
        #[serde(rename = "message")]
        _tag: serde::de::IgnoredAny,
        pub(super) exec: u32,
        pub(super) attestation: Box<A>,
    }

    pub(super) fn has(message: &[u8], tag: &str) -> bool {
        let rest = message.strip_prefix(br#"{"message":""#);
        let rest = rest.and_then(|rest| rest.strip_prefix(tag.as_bytes()));
        rest.is_some_and(|rest| rest.starts_with(b"\","))
    }

    pub(super) fn attested<A: DeserializeOwned>(
        message: &[u8],
    ) -> serde_json::Result<(u32, Box<A>)> {
        let Attested { exec, attestation, .. } = serde_json::from_slice(message)?;
        Ok((exec, attestation))
    }
}

impl FromInit {
    /// Every byte is hostile: an error, never a panic.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        if tag_first::has(message, "attested") {
            let read = tag_first::attested(message);
            return read
                .map(|(exec, attestation)| Self::Attested { exec, attestation })
                .map_err(bad);
        }
        if tag_first::has(message, "attested_brief") {
            let read = tag_first::attested(message);
            let read = read.map(|(exec, attestation)| Self::AttestedBrief { exec, attestation });
            return read.map_err(bad);
        }
        super::mux::parse(message)
    }
}

fn bad(error: serde_json::Error) -> WireError {
    WireError::BadMessage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_the_same_with_its_tag_in_any_place() {
        let brief = r#""exec":7,"attestation":{"uids":{"real":1,"effective":2,"saved":3},
            "gids":{"real":1,"effective":2,"saved":3},"groups":[4],"capabilities":{"inheritable":0,
            "permitted":0,"effective":0,"bounding":0,"ambient":0},"no_new_privileges":true,"seccomp_mode":2,
            "seccomp_filters":1,"descriptors":[],"rlimits":{},"environment":["A"]}"#;
        let first = format!(r#"{{"message":"attested_brief",{brief}}}"#);
        let last = format!(r#"{{{brief},"message":"attested_brief"}}"#);
        let read = FromInit::parse(first.as_bytes()).unwrap();
        assert!(matches!(read, FromInit::AttestedBrief { exec: 7, .. }), "{read:?}");
        assert_eq!(read, FromInit::parse(last.as_bytes()).unwrap());
        assert_eq!(read, super::super::mux::parse::<FromInit>(first.as_bytes()).unwrap());
        let twice = first.replace(r#","exec""#, r#","message":"quiet","exec""#);
        assert!(FromInit::parse(twice.as_bytes()).is_err());
        assert!(super::super::mux::parse::<FromInit>(twice.as_bytes()).is_err(), "as before");
        assert!(FromInit::parse(&first.as_bytes()[..first.len() - 1]).is_err());
        assert_eq!(FromInit::parse(br#"{"message":"quiet"}"#).unwrap(), FromInit::Quiet);
    }
}
