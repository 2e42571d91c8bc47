//! Fetches blobs, several at once, each resumed where its connection broke.

use std::cell::RefCell;

use futures_util::StreamExt;
use http_body_util::BodyExt;
use hyper::body::Incoming as Body;
use hyper::{Response, StatusCode, header};

use super::registry::Registry;
use super::retry::{Backoff, within};
use super::transport::{BODY_TIMEOUT, TransportError};
use super::{PullError, PullProgress};
use crate::manifest::Descriptor;
use crate::store::{BlobWriter, Incoming};

const AT_ONCE: usize = 3;

/// Fetches all of these, and stages each that is what it should be.
pub(super) async fn fetch_all(
    registry: &Registry,
    incoming: &mut Incoming<'_>,
    blobs: &[&Descriptor],
    progress: &mut dyn FnMut(PullProgress),
) -> Result<(), PullError> {
    let of = blobs.iter().fold(0_u64, |sum, blob| sum.saturating_add(blob.size));
    let counter = RefCell::new((0_u64, progress));
    let count = |bytes: i64| {
        let mut counter = counter.borrow_mut();
        counter.0 = counter.0.saturating_add_signed(bytes);
        let bytes = counter.0;
        (counter.1)(PullProgress { bytes, of });
    };
    let mut downloads = Vec::new();
    for blob in blobs {
        downloads.push(Download { registry, blob, writer: incoming.new_blob()?, count: &count });
    }
    let mut running = futures_util::stream::iter(downloads.into_iter().map(Download::run))
        .buffer_unordered(AT_ONCE);
    while let Some(done) = running.next().await {
        let (blob, writer) = done?;
        let digest = blob.digest;
        let staged = incoming.finish_blob(writer, digest, blob.size);
        staged.map_err(|error| PullError::Blob { digest, error: Box::new(error) })?;
    }
    Ok(())
}

struct Download<'a, C> {
    registry: &'a Registry,
    blob: &'a Descriptor,
    writer: BlobWriter,
    count: &'a C,
}

impl<'a, C: Fn(i64)> Download<'a, C> {
    async fn run(mut self) -> Result<(&'a Descriptor, BlobWriter), PullError> {
        let mut backoff = Backoff::new();
        loop {
            let before = self.writer.bytes();
            let error = match self.attempt().await? {
                None => return Ok((self.blob, self.writer)),
                Some(error) => error,
            };
            if self.writer.bytes() > before {
                backoff = Backoff::new();
            }
            if !backoff.wait().await {
                return Err(PullError::Broken {
                    host: self.registry.host().to_owned(),
                    digest: self.blob.digest,
                    attempts: backoff.attempts(),
                    error,
                });
            }
        }
    }

    /// One connection. Nothing: the blob is complete; an error that is given back can be tried again.
    async fn attempt(&mut self) -> Result<Option<TransportError>, PullError> {
        let from = self.writer.bytes();
        let response = match self.registry.blob(self.blob, from).await {
            Ok(response) => response,
            Err(PullError::Transport { error, .. }) if error.is_temporary() => {
                return Ok(Some(error));
            }
            Err(error) => return Err(error),
        };
        let from = self.check_start(&response, from)?;
        if from == 0 && self.writer.bytes() > 0 {
            (self.count)(-i64::try_from(self.writer.bytes()).unwrap_or(i64::MAX));
            self.writer.restart()?;
        }
        let mut body: Body = response.into_body();
        loop {
            let frame = match within(BODY_TIMEOUT, body.frame()).await {
                None => return Ok(Some(TransportError::TimedOut)),
                Some(None) => break,
                Some(Some(Err(error))) => return Ok(Some(TransportError::Http(error))),
                Some(Some(Ok(frame))) => frame,
            };
            let Ok(piece) = frame.into_data() else { continue };
            if self.writer.bytes().saturating_add(piece.len() as u64) > self.blob.size {
                let found = self.writer.bytes().saturating_add(piece.len() as u64);
                let error = crate::store::BlobError::Size { expected: self.blob.size, found };
                return Err(PullError::Blob { digest: self.blob.digest, error: Box::new(error) });
            }
            self.writer.write(&piece)?;
            (self.count)(i64::try_from(piece.len()).unwrap_or(0));
        }
        match self.writer.bytes() < self.blob.size {
            true => Ok(Some(TransportError::Ended)),
            false => Ok(None),
        }
    }

    /// Where the answer begins: a server may ignore the range, and must not send another.
    fn check_start(&self, response: &Response<Body>, from: u64) -> Result<u64, PullError> {
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Ok(0);
        }
        let range = response.headers().get(header::CONTENT_RANGE);
        let start = range
            .and_then(|range| range.to_str().ok())
            .and_then(|range| range.strip_prefix("bytes "))
            .and_then(|range| range.split('-').next())
            .and_then(|start| start.trim().parse::<u64>().ok());
        match start == Some(from) {
            true => Ok(from),
            false => Err(self.registry.bad_answer("a blob", "another range than was asked for")),
        }
    }
}
