//! Names whose connections are relayed, decrypted, to a socket of the test: a server that is no part of this network.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::UnixStream;

use super::FORWARDS;

/// Set once, before the servers start.
static TABLE: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();

/// Reads the table, if the directory has one: a line for each name, `NAME SOCKET`.
pub(super) fn load(directory: &Path) -> io::Result<()> {
    let text = match std::fs::read_to_string(directory.join(FORWARDS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    let rows = text.lines().map(|line| {
        let (name, socket) = line.split_once(' ').ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{FORWARDS}: no socket: {line}"))
        })?;
        Ok((name.to_lowercase(), PathBuf::from(socket)))
    });
    let table = rows.collect::<io::Result<_>>()?;
    TABLE.set(table).map_err(|_| io::Error::other("the forwarded names were read before"))
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.get().into_iter().flat_map(|table| table.keys().map(String::as_str))
}

/// The socket behind this name.
pub(super) fn socket_of(name: &str) -> Option<&'static Path> {
    TABLE.get()?.get(name).map(PathBuf::as_path)
}

/// Until one side has closed.
pub(super) async fn relay<S>(mut stream: S, socket: &Path)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Ok(mut server) = UnixStream::connect(socket).await else { return };
    let _ = copy_bidirectional(&mut stream, &mut server).await; // either side may leave at any time
}
