//! Gives a sandbox access to one service, with a secret that never enters it.
//!
//! A small HTTP server on this host's loopback stands for the service: it wants a key. Inside, the service is a port
//! of the sandbox's own loopback, and the variable `API_KEY` holds a placeholder; the proxy outside puts the key into
//! the request. No other host can be reached.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use belljar::Sandbox;
use belljar::spec::EventKind;

const KEY: &str = "correct-horse-battery-staple";

/// Python, since not every host has curl. The second request shows that nothing else can be reached.
const CLIENT: &str = r#"
import os, urllib.request
key = os.environ["API_KEY"]
request = urllib.request.Request("http://127.0.0.1:8080/hello", headers={"x-api-key": key})
print("the service said:", urllib.request.urlopen(request, timeout=20).read().decode())
print("the key is inside:", key == "correct-horse-" + "battery-staple")
try:
    urllib.request.urlopen("http://elsewhere.example/", timeout=20)
    print("another host was reached")
except OSError as error:
    print("another host was not reached")
"#;

fn manifest(port: u16) -> String {
    // The same can be set with SandboxBuilder::secret and SandboxBuilder::setting.
    format!(
        r#"
[[secret]]
env    = "API_KEY"
file   = "key"
host   = "127.0.0.1"
port   = {port}
header = "x-api-key"

[[route]]
listen = 8080
to     = "http://127.0.0.1:{port}"
secret = "API_KEY"
"#
    )
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || listener.incoming().flatten().try_for_each(serve));

    let settings = tempfile::tempdir()?; // only this user can read it
    let (file, key) = (settings.path().join("belljar.toml"), settings.path().join("key"));
    std::fs::write(&file, manifest(port))?;
    write_private(&key, KEY)?;

    let sandbox = Sandbox::builder().manifest(file).no_workspace().start().await?;
    let output = sandbox.exec(["python3", "-c", CLIENT]).output().await?;
    print!("{}{}", output.stdout_text(), output.stderr_text());
    let run = sandbox.record();
    sandbox.stop().await?;

    // Every connection is in the record, the denied ones too.
    let mut events = run.events(belljar::Follow::UntilEnd).await?;
    while let Some(event) = events.next().await {
        let event = event?;
        match event.kind {
            EventKind::EgressAllowed => println!("recorded: allowed"),
            EventKind::EgressDenied => println!("recorded: denied"),
            _ => {}
        }
    }
    Ok(())
}

fn write_private(path: &std::path::Path, content: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}

/// Answers one request: 200 with the key, 403 without it.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut has_key = false;
    for line in BufReader::new(&stream).lines() {
        let line = line?;
        has_key |= line.eq_ignore_ascii_case(&format!("x-api-key: {KEY}"));
        if line.is_empty() {
            break;
        }
    }
    let (status, body) = if has_key { ("200 OK", "welcome") } else { ("403 Forbidden", "no key") };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
