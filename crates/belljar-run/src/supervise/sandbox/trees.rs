//! The trees of a sandbox that are sent into it before its command starts, and brought back when it is over.

use belljar_backend::StartError;
use belljar_record::{RecordError, Recorder};
use belljar_spec::EventKind;
use belljar_spec::text::error_chain;

use super::super::init_link::Inside;
use super::super::outside::Signals;
use super::super::transfer::{ReturnReport, TransferError, TransferLink};
use super::{SandboxState, SuperviseError};

impl SandboxState {
    /// Before the command's process is made: its working directory may be in such a tree.
    pub(in super::super) fn send_trees(&mut self, signals: &Signals) -> Result<(), SuperviseError> {
        let Inside::Init(channel) = &mut self.link else { return Ok(()) };
        let (command, expectation) = (&self.command, &self.expectation);
        let mut link = TransferLink { channel, signals, command, expectation };
        self.transfers.send_all(&mut link).map_err(|error| {
            match (error, link.channel.diagnostics()) {
                (TransferError::Closed, Some(text)) => {
                    let why = format!("the sandbox could not be set up: {text}");
                    SuperviseError::SetUp(StartError::new(why))
                }
                (error, _) => error.into(),
            }
        })
    }

    /// While PID 1 is there: the trees go away with it.
    pub(super) fn bring_trees_back(&mut self) {
        let Inside::Init(channel) = &mut self.link else { return };
        if !self.transfers.comes_back() {
            return;
        }
        if let Some(error) = &self.result.tampered {
            // Nothing that is sent on such a channel is believed.
            return self.transfers.lost(|| TransferError::Wire(error.clone()));
        }
        // They are blocked already; this is one more descriptor to read them from.
        let signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => return self.transfers.lost(|| TransferError::Signals(error)),
        };
        let (command, expectation) = (&self.command, &self.expectation);
        let mut link = TransferLink { channel, signals: &signals, command, expectation };
        self.transfers.bring_back(&mut link);
    }

    pub(in super::super) fn record_sent_trees(
        &self,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        for sent in self.transfers.sent() {
            recorder.event(EventKind::WorkspaceSent, &sent.to_json())?;
        }
        Ok(())
    }

    /// What came back and what did not. The result is why changes are not known, if they are not.
    pub(in super::super) fn record_returned_trees(
        &mut self,
        recorder: &mut Recorder,
    ) -> Result<Option<String>, RecordError> {
        let mut lost = None;
        for report in self.transfers.take_returned() {
            let ReturnReport { target, returned } = &report;
            let kind = match returned {
                Ok(_) => EventKind::WorkspaceReturned,
                Err(error) => {
                    let why = error_chain(error);
                    lost = Some(format!("the changes to {target} were not brought back: {why}"));
                    EventKind::WorkspaceLost
                }
            };
            if recorder.is_sound() {
                recorder.event(kind, &report.to_json())?;
            }
        }
        Ok(lost)
    }
}
