//! `belljar port`: prints the host addresses of a run's published ports.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use belljar::network::network_report;
use belljar::spec::RunId;
use belljar::spec::egress::Published;

use super::{CommandResult, exit_code, find_live, open_home, run_file};
use crate::cli::PortArgs;
use crate::report;

/// How long to wait for the ports to appear in the record, which is written in groups.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum PortError {
    #[error("run {run} publishes no port; start it with -p PORT")]
    None { run: RunId },
    #[error("run {run} does not publish port {port}")]
    NotThis { run: RunId, port: u16 },
}

pub(crate) fn run(args: &PortArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &PortArgs) -> CommandResult {
    let home = open_home()?;
    let run = find_live(&home, &args.run)?.id;
    let wanted = run_file::read(&home, &run).map_or(0, |file| file.spec.egress.publish.len());
    let until = Instant::now() + RECORD_TIMEOUT;
    let mut ports = loop {
        let ports = network_report(&home, &run)?.ports;
        if ports.len() >= wanted || Instant::now() >= until {
            break ports;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if let Some(port) = args.port {
        ports.retain(|published| published.port == port);
        if ports.is_empty() {
            return Err(PortError::NotThis { run, port }.into());
        }
    }
    if ports.is_empty() {
        return Err(PortError::None { run }.into());
    }
    if args.json {
        report::json(&ports)?;
    } else {
        report::out(&ports.iter().map(|published| line(published, args.port)).collect::<String>());
    }
    Ok(0)
}

/// As docker prints it; only the address if a port was given.
fn line(published: &Published, asked: Option<u16>) -> String {
    let outside = SocketAddr::new(published.address, published.host_port);
    match asked {
        Some(_) => format!("{outside}\n"),
        None => format!("{}/tcp -> {outside}\n", published.port),
    }
}
