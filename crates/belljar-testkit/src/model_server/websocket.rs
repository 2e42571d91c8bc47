//! Responses over a WebSocket (RFC 6455): each message of the client asks for a reply, whose events are messages.

use std::io::{self, Write};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde_json::{Value, json};

use super::http::{Connection, HttpRequest};
use super::{GivenKey, Shared, Transport, Turn, TurnUsage, error, hang, note, responses};

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
/// Of RFC 6455, to be hashed with the client's key.
const HANDSHAKE: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

pub(super) fn serve(
    mut connection: Connection,
    request: &HttpRequest,
    given: &GivenKey,
    shared: &Shared,
) -> io::Result<()> {
    let key = request.header("sec-websocket-key").unwrap_or_default();
    let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{HANDSHAKE}").as_bytes());
    write!(
        connection.stream,
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        base64(accept.as_ref())
    )?;
    while let Some(message) = message(&mut connection)? {
        let body: Value = serde_json::from_slice(&message).unwrap_or_default();
        let is_warm_up = responses::is_warm_up(&body);
        note(shared, &request.target, Transport::WebSocket, given, !is_warm_up, &message);
        if is_warm_up {
            let nothing = TurnUsage { input_tokens: 0, output_tokens: 0 };
            let number = shared.lock().requests.len() as u64;
            send_all(&mut connection, &responses::finished(Vec::new(), number, nothing))?;
            continue;
        }
        let (turn, number, usage) = shared.next_turn();
        match turn {
            Turn::Hang => return hang(&mut connection, shared),
            Turn::Fail(status) => {
                let mut failure = error(shared.lock().api, status);
                failure["type"] = json!("error");
                failure["status"] = json!(status);
                frame(&mut connection, TEXT, failure.to_string().as_bytes())?;
            }
            turn => send_all(&mut connection, &responses::events(&turn, number, usage))?,
        }
    }
    Ok(())
}

fn send_all(connection: &mut Connection, events: &[super::http::ServerEvent]) -> io::Result<()> {
    for (_, data) in events {
        frame(connection, TEXT, data.to_string().as_bytes())?;
    }
    Ok(())
}

/// A whole message; `None`: the client closes.
fn message(connection: &mut Connection) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    loop {
        let head = match connection.exactly(2) {
            Ok(head) => head,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let (is_final, kind) = (head[0] & FINAL != 0, head[0] & 0xf);
        let length = match head[1] & !MASKED {
            126 => big_endian(&connection.exactly(2)?),
            127 => big_endian(&connection.exactly(8)?),
            short => usize::from(short),
        };
        let mask = match head[1] & MASKED {
            0 => vec![0; 4],
            _ => connection.exactly(4)?,
        };
        let mut payload = connection.exactly(length)?;
        for (index, byte) in payload.iter_mut().enumerate() {
            *byte ^= mask[index % 4];
        }
        match kind {
            CLOSE => return Ok(None),
            PING => frame(connection, PONG, &payload)?,
            TEXT | CONTINUATION => {
                message.extend(payload);
                if is_final {
                    return Ok(Some(message));
                }
            }
            _ => {}
        }
    }
}

fn frame(connection: &mut Connection, kind: u8, payload: &[u8]) -> io::Result<()> {
    let mut bytes = vec![FINAL | kind];
    match payload.len() {
        length @ 0..=125 => bytes.push(length as u8),
        length @ 126..=0xffff => {
            bytes.push(126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(payload);
    connection.stream.write_all(&bytes)
}

fn big_endian(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let all = (0..3).fold(0_u32, |sum, index| {
            (sum << 8) | u32::from(group.get(index).copied().unwrap_or(0))
        });
        for index in 0..4 {
            let letter = LETTERS[(all >> (18 - 6 * index)) as usize & 63];
            text.push(if index <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}
