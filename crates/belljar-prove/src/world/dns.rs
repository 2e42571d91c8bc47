//! The resolver of the test network, over UDP and TCP; it counts every query.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::counts::Watch;
use super::names::{self, Record};

const PORT: u16 = 53;
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const NO_SUCH_NAME: u8 = 3;
/// The usual TTL in seconds.
const KEPT_FOR: u32 = 60;

/// Every address is ours, so whatever resolver the host's settings name is this one. A reply over IPv6 has
/// to come from the very address that was asked, so those are bound one by one.
pub(super) async fn serve(watch: &Watch) -> std::io::Result<()> {
    let any: SocketAddr = ([0, 0, 0, 0], PORT).into();
    let named = nameservers().into_iter().filter(IpAddr::is_ipv6);
    let all = [any].into_iter().chain(named.map(|address| SocketAddr::new(address, PORT)));
    for at in all {
        let (udp, tcp) = match (UdpSocket::bind(at).await, TcpListener::bind(at).await) {
            (Ok(udp), Ok(tcp)) => (udp, tcp),
            (Err(error), _) | (_, Err(error)) if at == any => return Err(error),
            _ => continue, // a host without IPv6
        };
        tokio::spawn(over_udp(Arc::new(udp), watch.clone()));
        tokio::spawn(over_tcp(tcp, watch.clone()));
    }
    Ok(())
}

/// As the host's own settings have them. Without any, a host resolves nothing.
pub(super) fn nameservers() -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let values = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    values.filter_map(|value| value.trim().parse().ok()).collect()
}

async fn over_udp(socket: Arc<UdpSocket>, watch: Watch) {
    let mut packet = [0; 1500];
    while let Ok((length, from)) = socket.recv_from(&mut packet).await {
        let query = packet[..length].to_vec();
        let (socket, watch) = (Arc::clone(&socket), watch.clone());
        tokio::spawn(async move {
            if let Some(answer) = answer(&query, &watch).await {
                let _ = socket.send_to(&answer, from).await; // the client may have gone
            }
        });
    }
}

async fn over_tcp(listener: TcpListener, watch: Watch) {
    while let Ok((stream, _)) = listener.accept().await {
        let watch = watch.clone();
        tokio::spawn(async move {
            let _ = one_by_one(stream, &watch).await; // the client may have gone
        });
    }
}

async fn one_by_one(mut stream: TcpStream, watch: &Watch) -> std::io::Result<()> {
    loop {
        let length = stream.read_u16().await?;
        let mut query = vec![0; usize::from(length)];
        stream.read_exact(&mut query).await?;
        if let Some(answer) = answer(&query, watch).await {
            stream.write_u16(answer.len() as u16).await?;
            stream.write_all(&answer).await?;
        }
    }
}

struct Question {
    id: [u8; 2],
    name: String,
    kind: u16,
    /// The question as it came, for the answer.
    bytes: Vec<u8>,
}

fn parse(query: &[u8]) -> Option<Question> {
    let id = query.get(..2)?.try_into().ok()?;
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = query.get(at..at + length).filter(|_| length < 64)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes(query.get(at..at + 2)?.try_into().ok()?);
    let bytes = query.get(12..at + 4)?.to_vec();
    Some(Question { id, name: labels.join("."), kind, bytes })
}

async fn answer(query: &[u8], watch: &Watch) -> Option<Vec<u8>> {
    let question = parse(query)?;
    let wanted = match question.kind {
        TYPE_A => Some("A"),
        TYPE_AAAA => Some("AAAA"),
        _ => None,
    };
    let is_known = names::find(&question.name).is_some();
    let found = match wanted {
        Some(kind) => resolve(&question.name, kind, watch).await?,
        None => Found::default(),
    };
    let code = if is_known { 0 } else { NO_SUCH_NAME };
    let count = (found.aliases.len() + found.addresses.len()) as u16;
    let mut answer = Vec::from(question.id);
    answer.extend([0x85, 0x80 | code]); // an authoritative answer to a recursive question
    answer.extend(1_u16.to_be_bytes());
    answer.extend(count.to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(question.bytes);
    let mut owner = question.name;
    let keep = match names::find(&owner) {
        Some(Record::Changing(..)) => 0,
        _ => KEPT_FOR,
    };
    for alias in found.aliases {
        record(&mut answer, &owner, keep, TYPE_CNAME, &spelled(alias));
        owner = alias.to_owned();
    }
    for address in found.addresses {
        match address {
            IpAddr::V4(address) => record(&mut answer, &owner, keep, TYPE_A, &address.octets()),
            IpAddr::V6(address) => record(&mut answer, &owner, keep, TYPE_AAAA, &address.octets()),
        }
    }
    Some(answer)
}

/// One record with its TTL in seconds.
fn record(answer: &mut Vec<u8>, owner: &str, keep: u32, kind: u16, data: &[u8]) {
    answer.extend(spelled(owner));
    answer.extend(kind.to_be_bytes());
    answer.extend([0, 1]);
    answer.extend(keep.to_be_bytes());
    answer.extend((data.len() as u16).to_be_bytes());
    answer.extend(data);
}

fn spelled(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    aliases: Vec<&'static str>,
    pub(super) addresses: Vec<IpAddr>,
}

/// `None` is no answer at all.
pub(super) async fn resolve(name: &str, kind: &str, watch: &Watch) -> Option<Found> {
    let asked_before = watch.asked(kind, name);
    let mut found = Found::default();
    let mut record = names::find(name);
    while let Some(Record::Alias(to)) = record {
        found.aliases.push(to);
        record = names::find(to);
    }
    found.addresses = match record {
        None | Some(Record::Alias(_)) => Vec::new(),
        Some(Record::Addresses(all)) => all,
        Some(Record::Changing(first, _)) if asked_before == 0 => vec![first],
        Some(Record::Changing(_, then)) => vec![then],
        Some(Record::Slow(late, address)) => {
            tokio::time::sleep(late).await;
            vec![address]
        }
        Some(Record::Silent) => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            return None;
        }
    };
    found.addresses.retain(|address| address.is_ipv4() == (kind == "A"));
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str, kind: u16, watch: &Watch) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.extend(spelled(name));
        query.extend(kind.to_be_bytes());
        query.extend([0, 1]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(answer(&query, watch)).unwrap()
    }

    #[test]
    fn an_answer_has_the_questions_id_and_its_addresses() {
        let watch = Watch::default();
        let answer = ask("ok.example", TYPE_A, &watch);
        assert_eq!(answer[..4], [7, 9, 0x85, 0x80]);
        assert_eq!(answer[4..8], [0, 1, 0, 1]);
        assert!(answer.ends_with(&[93, 184, 216, 34]));
        assert_eq!(ask("ok.example", TYPE_AAAA, &watch)[6..8], [0, 0], "known, without such");
        assert_eq!(ask("nobody.example", TYPE_A, &watch)[3] & 0xf, NO_SUCH_NAME);
        assert_eq!(ask("alias.example", TYPE_A, &watch)[6..8], [0, 3]);
    }

    #[test]
    fn a_name_that_rebinds_is_public_once() {
        let watch = Watch::default();
        assert!(ask("rebind.example", TYPE_A, &watch).ends_with(&[93, 184, 216, 34]));
        for _ in 0..2 {
            assert!(ask("rebind.example", TYPE_A, &watch).ends_with(&[127, 0, 0, 1]));
        }
        assert_eq!(watch.so_far().queries["A rebind.example"], 3);
    }
}
