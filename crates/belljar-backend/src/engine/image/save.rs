//! Reads an image out of an engine, as the archive that `docker save` writes.

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use tokio::sync::mpsc::{Receiver, channel};

use super::failure;
use crate::engine::api::Api;
use crate::error::ImageError;

/// An engine writes the whole archive before it sends the first byte where it cannot stream it.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(600);
/// Pieces of the archive that wait to be read.
const MAX_WAITING: usize = 64;

type Chunk = Result<Bytes, bollard::errors::Error>;

/// The archive, while the engine sends it.
#[derive(Debug)]
pub(in crate::engine) struct SavedImage<'a> {
    api: &'a Api,
    chunks: Receiver<Chunk>,
    current: Bytes,
}

impl<'a> SavedImage<'a> {
    pub(in crate::engine) fn new(api: &'a Api, name: &str) -> Result<Self, ImageError> {
        let (docker, name) = (api.docker.clone(), name.to_owned());
        let (send, chunks) = channel(MAX_WAITING);
        let begin = async move {
            tokio::spawn(async move {
                let mut chunks = std::pin::pin!(docker.export_image(&name));
                while let Some(chunk) = chunks.next().await {
                    if send.send(chunk).await.is_err() {
                        return; // nobody reads any more
                    }
                }
            });
        };
        api.wait_for(begin).map_err(|error| failure::of_engine(&error))?;
        Ok(Self { api, chunks, current: Bytes::new() })
    }
}

impl Read for SavedImage<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            let chunks = &mut self.chunks;
            let next = async { tokio::time::timeout(CHUNK_TIMEOUT, chunks.recv()).await };
            match self.api.wait_for(next).map_err(io::Error::other)? {
                Err(_) => return Err(io::Error::other("the engine sent nothing for 10 minutes")),
                Ok(None) => return Ok(0),
                Ok(Some(Err(error))) => return Err(io::Error::other(error)),
                Ok(Some(Ok(chunk))) => self.current = chunk,
            }
        }
        let length = buffer.len().min(self.current.len());
        buffer[..length].copy_from_slice(&self.current[..length]);
        self.current.advance(length);
        Ok(length)
    }
}
