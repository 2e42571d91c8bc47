//! The recorded output of a run's commands as a stream.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_spec::OutputStream;
use futures_core::Stream;

use super::follow::{FollowSource, Following};
use super::output::{Content, Copies, Flow, Outputs, Pieces};
use super::{Follow, RecordedRun};
use crate::sandbox::Error;

/// Bytes that are read at once, about.
const BATCH: usize = 256 << 10;

/// Recorded output of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// The number of the command in the record; the run's main command is 0.
    pub exec: u32,
    pub stream: OutputStream,
    /// RFC 3339, in UTC.
    pub time: String,
    pub bytes: Vec<u8>,
    /// This many bytes before `bytes` were not kept.
    pub lost: u64,
}

#[derive(Debug)]
struct LogSource {
    pieces: Pieces,
    outputs: Outputs,
}

impl FollowSource for LogSource {
    type Item = LogPiece;

    fn read(&mut self) -> Result<Vec<LogPiece>, Error> {
        let (mut items, mut size) = (Vec::new(), 0);
        while size < BATCH {
            let Some(piece) = self.pieces.next()? else { break };
            let mut lost = 0;
            let one = |bytes: Vec<u8>, lost: u64| LogPiece {
                exec: piece.exec,
                stream: piece.stream,
                time: piece.time.clone(),
                bytes,
                lost,
            };
            self.outputs.read(&piece, &mut |content| {
                match content {
                    Content::Bytes(bytes) => {
                        size += bytes.len();
                        items.push(one(bytes.to_vec(), std::mem::take(&mut lost)));
                    }
                    Content::Lost(count) => lost += count,
                }
                Flow::Continue
            })?;
            if lost > 0 {
                items.push(one(Vec::new(), lost));
            }
        }
        Ok(items)
    }
}

/// Output in the order in which it was recorded; see [`RecordedRun::logs`].
pub struct Logs(Following<LogSource>);

impl Logs {
    /// `None` after the last piece; after an error there are no more.
    pub async fn next(&mut self) -> Option<Result<LogPiece, Error>> {
        poll_fn(|context| self.0.poll_next(context)).await
    }
}

impl Stream for Logs {
    type Item = Result<LogPiece, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_next(context)
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

impl RecordedRun {
    /// The output of all commands, from the first on, without what was copied in or out.
    pub async fn logs(&self, follow: Follow) -> Result<Logs, Error> {
        let source = self
            .read(|home, run| {
                let directory = home.run_dir(run);
                let mut outputs = Outputs::new(directory.clone());
                // Which bytes of a stream are kept depends on its length.
                let mut known = Pieces::open(&directory, Copies::LeftOut)?;
                while let Some(piece) = known.next()? {
                    outputs.learn(&piece);
                }
                let pieces = Pieces::open(&directory, Copies::LeftOut)?;
                Ok(LogSource { pieces, outputs })
            })
            .await?;
        Ok(Logs(Following::new(self.clone(), follow, source)))
    }
}
