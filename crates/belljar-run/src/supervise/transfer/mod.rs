//! Sends trees into a sandbox before its command starts, and brings them back when it is over.
//!
//! For backends that cannot mount a tree of this host. Belljar's own code inside packs and unpacks
//! (`Work::Pack`, `Work::Unpack`), in a process that is locked down and attested like any command. What comes back is
//! hostile: it is unpacked by `belljar_workspace::transfer` beside the copy that was sent, and merged into it only
//! when it is complete.

mod carrier;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_spec::text::error_chain;
use belljar_spec::wire::{AttestationKind, ReadOnlyFiles, UnpackModes, WireError, Work};
use belljar_spec::{AfterRun, CommandPlan, Expectation, OsText, SentTree};
use belljar_workspace::transfer::{
    CopyError, CopyLimits, CopyReport, LinkTargets, MergeError, ReceivedMerge, Receiver, Sender,
    merge_received,
};
use rustix::io::Errno;
use serde_json::{Value, json};

use self::carrier::{Carrier, Payload};
use super::SuperviseError;
use super::channel::Channel;
use super::libc_signal;
use super::outside::Signals;

/// Transfers count down from here: commands count up from 0, and the streams of both stay below those of
/// connections.
const FIRST_EXEC: u32 = 0x0FFF_FFFF;
/// Without a byte for so long, a transfer has failed.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// A sandbox that sends a byte now and then does not hold up the end of its run for longer.
pub(super) const BRING_BACK_TIMEOUT: Duration = Duration::from_secs(600);
const SEND_TIMEOUT: Duration = Duration::from_secs(3600);
/// From the request that everything inside ends to the kill from outside.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ENTRIES: u64 = 1_000_000;
/// The name of what came back, beside the copy that was sent.
const RECEIVED: &str = "received";

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error("{path} cannot be sent: {why}; hide it (sandbox.hide)")]
    NotSent { path: OsText, why: String },
    #[error("more than {0} entries could not be packed")]
    ManySkipped(usize),
    #[error("the transfer's process in the sandbox could not be prepared ({step}): {why}")]
    NotPrepared { step: String, why: String },
    #[error("the transfer's process in the sandbox is not locked down as planned: {0}")]
    NotAsPlanned(String),
    #[error("the transfer failed in the sandbox: {0}")]
    Inside(String),
    #[error("nothing arrived for {} seconds", STALLED_AFTER.as_secs())]
    Stalled,
    #[error("the transfer took longer than {} seconds", .0.as_secs())]
    TooLong(Duration),
    #[error("the connection to the sandbox ended")]
    Closed,
    #[error("the transfer was interrupted")]
    Interrupted,
    #[error("the channel carried what PID 1 cannot have sent")]
    Wire(#[source] WireError),
    #[error("cannot ask PID 1 for the transfer")]
    Request(#[source] Box<SuperviseError>),
    #[error("cannot watch for signals")]
    Signals(#[source] Errno),
    #[error("cannot wait for the transfer")]
    Wait(#[source] Box<SuperviseError>),
}

/// What is needed to talk to PID 1.
pub(super) struct TransferLink<'a> {
    pub(super) channel: &'a mut Channel,
    pub(super) signals: &'a Signals,
    pub(super) command: &'a CommandPlan,
    pub(super) expectation: &'a Expectation,
}

/// A tree that was sent.
#[derive(Debug)]
pub(super) struct SentReport {
    pub(super) target: OsText,
    pub(super) report: CopyReport,
}

/// A tree that came back, or did not.
#[derive(Debug)]
pub(super) struct ReturnReport {
    pub(super) target: OsText,
    pub(super) returned: Result<Returned, TransferError>,
}

#[derive(Debug)]
pub(super) struct Returned {
    pub(super) report: CopyReport,
    pub(super) merged: ReceivedMerge,
}

impl SentReport {
    pub(super) fn to_json(&self) -> Value {
        json!({ "target": self.target, "files": self.report.files, "bytes": self.report.bytes })
    }
}

impl ReturnReport {
    pub(super) fn to_json(&self) -> Value {
        match &self.returned {
            Ok(Returned { report, merged }) => json!({
                "target": self.target,
                "files": report.files,
                "bytes": report.bytes,
                "written": merged.written,
                "removed": merged.removed,
                "modes": merged.modes,
                "skipped": report.skipped.len(),
            }),
            Err(error) => json!({ "target": self.target, "why": error_chain(error) }),
        }
    }
}

/// The trees of a sandbox that are sent.
#[derive(Debug)]
pub(super) struct Transfers {
    trees: Vec<SentTree>,
    sent: Vec<SentReport>,
    returned: Vec<ReturnReport>,
    next_exec: u32,
    /// When everything inside was asked to end, so that the trees can be brought back.
    asked_to_end: Option<Instant>,
}

impl Transfers {
    pub(super) fn new(trees: Vec<SentTree>) -> Self {
        Self {
            trees,
            sent: Vec::new(),
            returned: Vec::new(),
            next_exec: FIRST_EXEC,
            asked_to_end: None,
        }
    }

    /// Whether there is a tree to bring back.
    pub(super) fn comes_back(&self) -> bool {
        self.to_bring_back().next().is_some()
    }

    pub(super) fn sent(&self) -> &[SentReport] {
        &self.sent
    }

    pub(super) fn take_returned(&mut self) -> Vec<ReturnReport> {
        std::mem::take(&mut self.returned)
    }

    fn to_bring_back(&self) -> impl Iterator<Item = &SentTree> {
        self.trees.iter().filter(|tree| tree.after == AfterRun::BringBack)
    }

    /// Before PID 1 is killed, everything else inside is: the trees go away with PID 1. `true` while PID 1 has time
    /// for that.
    pub(super) fn end_gently(&mut self, channel: Option<&mut Channel>, now: Instant) -> bool {
        let Some(channel) = channel.filter(|channel| !channel.is_closed()) else { return false };
        if !self.comes_back() {
            return false;
        }
        match self.asked_to_end {
            None => {
                self.asked_to_end = Some(now);
                channel.signal_all(libc_signal::KILL);
                true
            }
            Some(at) => now < at + END_TIMEOUT,
        }
    }

    /// Sends all trees. The sandbox attests as a whole before the first byte.
    pub(super) fn send_all(&mut self, link: &mut TransferLink<'_>) -> Result<(), TransferError> {
        for tree in self.trees.clone() {
            let sender = Sender::begin_checked(&tree.from, tree.identity)?;
            let sender = sender.without(tree.left_out.clone());
            let (path, modes) = (tree.target.clone(), UnpackModes::Exact);
            let work = Work::Unpack { path, modes, read_only: ReadOnlyFiles::Replace };
            let mut payload = Payload::Send { sender, piece: Vec::new(), at: 0 };
            self.carry(link, work, AttestationKind::Full, &mut payload)?;
            let Payload::Send { sender, .. } = payload else { continue };
            let report = sender.report();
            // What was not sent would come back as deleted.
            if let (AfterRun::BringBack, Some((path, why))) = (tree.after, report.skipped.first()) {
                return Err(TransferError::NotSent { path: path.clone(), why: why.clone() });
            }
            self.sent.push(SentReport { target: tree.target, report });
        }
        Ok(())
    }

    /// Brings back all trees that are to come back. Everything else inside ends first.
    pub(super) fn bring_back(&mut self, link: &mut TransferLink<'_>) {
        if link.channel.is_closed() {
            return self.lost(|| TransferError::Closed);
        }
        link.channel.signal_all(libc_signal::KILL);
        let trees: Vec<SentTree> = self.to_bring_back().cloned().collect();
        for tree in trees {
            let returned = self.bring_back_one(link, &tree);
            self.returned.push(ReturnReport { target: tree.target, returned });
        }
    }

    /// Nothing comes back.
    pub(super) fn lost(&mut self, why: impl Fn() -> TransferError) {
        let one = |tree: &SentTree| {
            let target = tree.target.clone();
            ReturnReport { target, returned: Err(why()) }
        };
        self.returned = self.to_bring_back().map(one).collect();
    }

    fn bring_back_one(
        &mut self,
        link: &mut TransferLink<'_>,
        tree: &SentTree,
    ) -> Result<Returned, TransferError> {
        let until = Instant::now() + BRING_BACK_TIMEOUT;
        let received = tree.from.with_file_name(RECEIVED);
        let limits = CopyLimits { bytes: tree.max_bytes, entries: MAX_ENTRIES };
        let receiver = Receiver::begin(&received, None, limits)?;
        let receiver = receiver.with_links(LinkTargets::Anything);
        let mut payload = Payload::Receive { receiver: Box::new(receiver) };
        let work = Work::Pack { path: tree.target.clone() };
        self.carry(link, work, AttestationKind::Brief, &mut payload)?;
        let Payload::Receive { receiver } = payload else { return Err(TransferError::Closed) };
        let report = receiver.finish()?;
        let merged = merge(&report, &received, &tree.from, until);
        // It is the run's own; what cannot be removed now goes with the run's directory.
        let _ = belljar_tree::remove_all(&received);
        Ok(Returned { merged: merged?, report })
    }

    /// Has PID 1 start a process for the work, and carries its bytes until it exits.
    fn carry(
        &mut self,
        link: &mut TransferLink<'_>,
        work: Work,
        depth: AttestationKind,
        payload: &mut Payload,
    ) -> Result<(), TransferError> {
        let exec = self.next_exec;
        self.next_exec -= 1;
        let within = match payload {
            Payload::Send { .. } => SEND_TIMEOUT,
            Payload::Receive { .. } => BRING_BACK_TIMEOUT,
        };
        Carrier::begin(exec, work, depth, link, within)?.run(link, payload)
    }
}

fn merge(
    report: &CopyReport,
    received: &Path,
    sent: &Path,
    until: Instant,
) -> Result<ReceivedMerge, TransferError> {
    if report.unlisted > 0 {
        return Err(TransferError::ManySkipped(report.skipped.len()));
    }
    let skipped = report.skipped.iter().map(|(path, _)| path.as_path().to_owned());
    let skipped: Vec<PathBuf> = skipped.collect();
    Ok(merge_received(received, sent, &skipped, until)?)
}
