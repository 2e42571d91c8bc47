//! Events and output of a run as streams.

use std::io::Write;
use std::time::Duration;

use belljar::spec::{EventKind, OutputStream};
use belljar::{Error, Follow, RecordedRun};

use crate::bench::Bench;

const SOON: Duration = Duration::from_secs(20);

async fn kinds(run: &RecordedRun, follow: Follow) -> Result<Vec<EventKind>, Error> {
    let mut events = run.events(follow).await?;
    let mut kinds = Vec::new();
    while let Some(event) = events.next().await {
        kinds.push(event?.kind);
    }
    Ok(kinds)
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_followed_to_the_end_of_the_run() {
    let bench = Bench::new();
    let sandbox = bench.builder().start().await.unwrap();
    let run = sandbox.record();
    let mut events = sandbox.events().await.unwrap();
    let first = tokio::time::timeout(SOON, events.next()).await.unwrap();
    assert_eq!(first.unwrap().unwrap().kind, EventKind::RunStart);
    let follower = tokio::spawn(async move {
        let mut kinds = Vec::new();
        while let Some(event) = events.next().await {
            kinds.push(event.unwrap().kind);
        }
        kinds
    });
    sandbox.exec(["true"]).output().await.unwrap();
    let so_far = kinds(&run, Follow::UntilNow).await.unwrap();
    assert!(!so_far.contains(&EventKind::RunStop), "{so_far:?}");
    assert!(!follower.is_finished(), "the run goes on, and so do its events");
    sandbox.stop().await.unwrap();
    let seen = tokio::time::timeout(SOON, follower).await.unwrap().unwrap();
    assert!(
        seen.contains(&EventKind::ExecStart) && seen.contains(&EventKind::ExecExit),
        "{seen:?}"
    );
    assert_eq!(seen.last(), Some(&EventKind::RunStop));
    assert_eq!(kinds(&run, Follow::UntilEnd).await.unwrap().len(), seen.len() + 1);

    // As a stream, for the adapters of others.
    fn is_stream<S: futures_core::Stream<Item = Result<belljar::spec::Event, Error>>>(_: &S) {}
    is_stream(&run.events(Follow::UntilNow).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_the_supervisor_did_not_write_ends_the_events() {
    let bench = Bench::new();
    let run = bench.builder().run(["true"]).await.unwrap().record();
    assert!(kinds(&run, Follow::UntilEnd).await.is_ok(), "the control");
    let path = bench.home().join("runs").join(run.id().as_str()).join("events.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let last = text.lines().last().unwrap().replace("run.stop", "run.start");
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    writeln!(file, "{last}").unwrap();
    let forged = kinds(&run, Follow::UntilEnd).await.unwrap_err();
    assert!(matches!(forged, Error::Record(_)), "{forged}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_all_commands_comes_in_order_without_copies() {
    let bench = Bench::new();
    let sandbox = bench.builder().start().await.unwrap();
    let run = sandbox.record();
    sandbox.exec(["sh", "-c", "echo first"]).output().await.unwrap();
    sandbox.write_file("/tmp/f", "copied").await.unwrap();
    sandbox.read_file("/tmp/f").await.unwrap();
    sandbox.list_dir("/tmp").await.unwrap();
    sandbox.exec(["sh", "-c", "echo second >&2"]).output().await.unwrap();
    let mut logs = run.logs(Follow::UntilEnd).await.unwrap();
    sandbox.stop().await.unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = tokio::time::timeout(SOON, logs.next()).await.unwrap() {
        pieces.push(piece.unwrap());
    }
    let shown: Vec<_> = pieces.iter().map(|piece| (piece.stream, &piece.bytes[..])).collect();
    assert_eq!(
        shown,
        [(OutputStream::Stdout, &b"first\n"[..]), (OutputStream::Stderr, &b"second\n"[..])]
    );
    assert!(pieces[0].exec < pieces[1].exec);
    assert!(pieces.iter().all(|piece| piece.lost == 0));
}

#[tokio::test]
async fn a_run_that_is_not_there_is_an_error() {
    let bench = Bench::new();
    let missing = RecordedRun::open_in(&bench.home(), "nonesuch").await.unwrap_err();
    assert!(matches!(missing, Error::Find(_)), "{missing}");
}
