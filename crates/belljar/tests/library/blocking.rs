//! The library without an async runtime, and within one.

use std::time::Duration;

use belljar::blocking::{self, Sandbox};
use belljar::spec::{EventKind, MountMode, StopReason};
use belljar::testing::{FakeBackend, FakeReply};
use belljar::{ApplyOptions, Error, Follow};

use crate::bench::Bench;

#[test]
fn every_call_waits() {
    let bench = Bench::new();
    let sandbox = Sandbox::start(bench.with_workspace(MountMode::Overlay)).unwrap();
    let output = sandbox.exec(["sh", "-c", "cat; echo err >&2; exit 5"]).stdin("in").output();
    let output = output.unwrap();
    assert_eq!((output.stdout_text(), output.exit.code), ("in".to_owned(), Some(5)));
    let slow = sandbox.exec(["sleep", "1000"]).timeout(Duration::from_millis(200)).output();
    assert!(matches!(slow, Err(Error::Deadline { .. })), "{slow:?}");

    let mut running = sandbox.exec(["cat"]).stdin_stream().spawn().unwrap();
    running.write(b"typed").unwrap();
    assert_eq!(running.next_chunk().unwrap().unwrap().bytes, b"typed");
    running.close_input();
    assert_eq!(running.next_chunk().unwrap(), None);
    assert_eq!(running.wait().unwrap().code, Some(0));
    assert!(running.write(b"more").is_err());

    sandbox.write_file("made/here", "content").unwrap();
    assert_eq!(sandbox.read_file("made/here").unwrap(), b"content");
    assert_eq!(sandbox.list_dir("made").unwrap().len(), 1);
    assert!(sandbox.exists("made").unwrap());
    let checkpoint = sandbox.checkpoint("before").unwrap();
    assert_eq!(checkpoint.number, 1);
    assert_eq!(sandbox.diff().unwrap().changes().count(), 2);
    assert_eq!(sandbox.apply(ApplyOptions::default()).unwrap().changes, 2);
    assert_eq!(bench.read("made/here"), "content");
    assert_eq!(sandbox.status().unwrap().run, sandbox.id());
    let run = sandbox.record();
    let events = sandbox.events().unwrap();
    assert_eq!(sandbox.stop().unwrap().reason, StopReason::Stopped);
    let last = events.map(|event| event.unwrap().kind).last();
    assert_eq!(last, Some(EventKind::RunStop));
    assert!(run.logs(Follow::UntilEnd).unwrap().count() > 0);
    run.discard().unwrap();

    let done = blocking::run(bench.builder(), ["sh", "-c", "exit 4"]).unwrap();
    assert_eq!(done.output.exit.code, Some(4));
}

/// A program may call this from a thread of its own runtime, be it the only one: it blocks, and neither panics nor
/// waits for ever.
#[test]
fn it_works_inside_an_async_runtime() {
    let fake =
        || FakeBackend::new().on("slow", |_| FakeReply::code(3).takes(Duration::from_millis(50)));
    let call = move || {
        let sandbox = Sandbox::start(Sandbox::builder().no_config().connector(fake())).unwrap();
        let output = sandbox.exec(["slow"]).output().unwrap();
        sandbox.stop().unwrap();
        output.exit.code
    };
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(single.block_on(async { call() }), Some(3));
    let many =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    assert_eq!(
        many.block_on(async { tokio::spawn(async move { call() }).await.unwrap() }),
        Some(3)
    );
    // A runtime without timers and I/O of its own.
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(bare.block_on(async { call() }), Some(3));
}

#[test]
fn threads_share_a_sandbox() {
    let fake = FakeBackend::new();
    let settings = Sandbox::builder().no_config().connector(fake);
    let sandbox = Sandbox::start(settings).unwrap();
    std::thread::scope(|scope| {
        for number in 0..20 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let output = sandbox.exec(["echo", &number.to_string()]).output().unwrap();
                assert_eq!(output.stdout_text(), format!("{number}\n"));
            });
        }
    });
}
