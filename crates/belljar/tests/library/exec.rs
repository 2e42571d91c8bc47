//! Commands in a sandbox through the library, against the fake at the other end of the protocol.

use std::time::{Duration, Instant};

use belljar::spec::wire::control::{ControlError, Streams, WindowSize};
use belljar::spec::{ExecFailure, ExitSource};
use belljar::testing::{FakeBackend, FakeReply};
use belljar::{Error, Sandbox, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn start(fake: &FakeBackend) -> Sandbox {
    Sandbox::builder().no_config().connector(fake.clone()).start().await.unwrap()
}

/// Waits for something that another task does.
async fn soon(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_collected_command_has_both_streams_its_exit_and_what_it_was_asked_with() {
    let fake =
        FakeBackend::new().on("make", |_| FakeReply::code(3).with_stdout("out").with_stderr("err"));
    let sandbox = start(&fake).await;
    let exec = sandbox.exec(["make", "-j"]).env("A", "1").env_remove("B").workdir("/src");
    let output = exec.timeout(Duration::from_secs(9)).output().await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out"[..], &b"err"[..]));
    assert_eq!((output.exit.code, output.source), (Some(3), ExitSource::Command));
    assert!(!output.success() && !output.truncated);
    let call = &fake.calls()[0];
    assert_eq!(call.argv, ["make".into(), "-j".into()]);
    assert_eq!(call.env, [("A".to_owned(), Some("1".into())), ("B".to_owned(), None)]);
    assert_eq!(call.workdir, Some("/src".into()));
    assert_eq!(call.timeout, Some(Duration::from_secs(9)));
}

#[tokio::test]
async fn input_given_as_a_whole_arrives_whole_however_long_it_is() {
    let sandbox = start(&FakeBackend::new()).await;
    let long: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
    let exec = sandbox.exec(["cat"]).stdin(long.clone()).limit_output(2_000_000);
    let output = exec.output().await.unwrap();
    assert!(output.stdout == long, "{} bytes came back", output.stdout.len());
    // Without input there is none, and nothing waits for it.
    assert_eq!(sandbox.exec(["cat"]).output().await.unwrap().stdout, b"");
}

#[tokio::test]
async fn past_the_limit_head_and_tail_are_kept() {
    let fake = FakeBackend::new().on("long", |_| FakeReply::stdout("x".repeat(100_000) + "end"));
    let sandbox = start(&fake).await;
    let output = sandbox.exec(["long"]).limit_output(10).output().await.unwrap();
    assert_eq!(output.stdout, b"xxxxxxxend"[..].to_vec());
    assert!(output.truncated);
    assert_eq!(output.omitted.stdout, 99_993);
    let whole = sandbox.exec(["long"]).output().await.unwrap();
    assert_eq!((whole.stdout.len(), whole.truncated), (100_003, false));
}

#[tokio::test]
async fn output_streams_while_the_command_runs_and_input_goes_in_meanwhile() {
    let fake = FakeBackend::new()
        .on("talk", |_| FakeReply::stdout("now").with_stderr("too").forever())
        .on("shout", |call| FakeReply::stdout(call.stdin.to_ascii_uppercase()));
    let sandbox = start(&fake).await;
    let mut talk = sandbox.exec(["talk"]).spawn().await.unwrap();
    let first = talk.next().await.unwrap();
    assert_eq!((first.source, &first.bytes[..]), (Source::Stdout, &b"now"[..]));
    assert_eq!(talk.next().await.unwrap().source, Source::Stderr);

    let mut shout = sandbox.exec(["shout"]).stdin_stream().spawn().await.unwrap();
    let mut stdin = shout.stdin().unwrap();
    assert!(shout.stdin().is_none(), "there is one input");
    let mut stdout = shout.stdout().unwrap();
    stdin.write_all(b"one ").await.unwrap();
    stdin.write_all(b"two").await.unwrap();
    stdin.shutdown().await.unwrap();
    let mut text = String::new();
    stdout.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "ONE TWO");
    assert_eq!(shout.wait().await.unwrap().code, Some(0));

    talk.signal(15).unwrap();
    assert_eq!(talk.wait().await.unwrap().signal, Some(15));
    assert_eq!(fake.signals(), [15]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_commands_run_at_once_over_one_connection() {
    let fake = FakeBackend::new().on("id", |call| {
        let long = call.argv[1].to_string().repeat(20_000);
        FakeReply::stdout(long).takes(Duration::from_millis(20))
    });
    let sandbox = start(&fake).await;
    let begun = Instant::now();
    let commands: Vec<_> = (100..150)
        .map(|n| {
            let exec = sandbox.exec(["id".to_owned(), n.to_string()]);
            tokio::spawn(async move { (n, exec.output().await) })
        })
        .collect();
    for command in commands {
        let (n, output) = command.await.unwrap();
        assert!(output.unwrap().stdout == n.to_string().repeat(20_000).into_bytes(), "{n}");
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(fake.calls().len(), 50);
    // Numbers are freed: as many again, one after the other, is no problem.
    for _ in 0..200 {
        assert!(sandbox.exec(["true"]).output().await.unwrap().success());
    }
}

#[tokio::test]
async fn a_deadline_is_an_error_that_has_the_output() {
    let fake = FakeBackend::new().on("slow", |_| FakeReply::stdout("so far").forever());
    let sandbox = start(&fake).await;
    let exec = || sandbox.exec(["slow"]).timeout(Duration::from_millis(50));
    let error = exec().output().await.unwrap_err();
    let Error::Deadline { output } = error else { panic!("{error}") };
    assert_eq!(output.stdout, b"so far");
    assert_eq!((output.exit.code, output.source), (Some(124), ExitSource::Deadline));
    let exit = exec().spawn().await.unwrap().wait().await.unwrap();
    assert_eq!(exit.source, ExitSource::Deadline);
    // The same limit does not harm a command that keeps it.
    let quick = sandbox.exec(["true"]).timeout(Duration::from_secs(30));
    assert!(quick.output().await.unwrap().success());
}

#[tokio::test]
async fn a_command_ends_when_it_is_killed_or_let_go_of() {
    let fake = FakeBackend::new().on("stay", |_| FakeReply::code(0).forever());
    let sandbox = start(&fake).await;
    let mut killed = sandbox.exec(["stay"]).spawn().await.unwrap();
    assert_eq!(killed.kill().await.unwrap().signal, Some(9));
    assert_eq!(fake.kills(), 1);

    let dropped = sandbox.exec(["stay"]).spawn().await.unwrap();
    assert_eq!(sandbox.status().await.unwrap().tasks, 1);
    drop(dropped);
    soon("the kill", || fake.kills() == 2).await;

    // So it is with a caller that gives up on a collected one.
    let gave_up =
        tokio::time::timeout(Duration::from_millis(50), sandbox.exec(["stay"]).output()).await;
    assert!(gave_up.is_err());
    soon("the kill", || fake.kills() == 3).await;

    // One that is told to live on does.
    drop(sandbox.exec(["stay"]).lives_on().spawn().await.unwrap());
    assert_eq!(sandbox.status().await.unwrap().tasks, 1);
    assert_eq!(fake.kills(), 3);
    // One that is over is not killed.
    drop(sandbox.exec(["true"]).spawn().await.unwrap().wait().await);
    assert_eq!(sandbox.status().await.unwrap().tasks, 1);
    assert_eq!(fake.kills(), 3);
}

#[tokio::test]
async fn a_slow_reader_makes_the_other_end_wait_and_gets_everything() {
    const LENGTH: usize = 8 << 20;
    let fake = FakeBackend::new().on("flood", |_| FakeReply::stdout(vec![b'x'; LENGTH]));
    let sandbox = start(&fake).await;
    let mut flood = sandbox.exec(["flood"]).spawn().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(fake.sent() <= 64 * 1024, "{} bytes were sent unread", fake.sent());
    // Others are not held up by it.
    assert!(sandbox.exec(["true"]).output().await.unwrap().success());
    let mut length = 0;
    while let Some(chunk) = flood.next().await {
        length += chunk.bytes.len();
    }
    assert_eq!(length, LENGTH);
    assert!(flood.wait().await.is_ok());

    // Who only waits does not have to read.
    let mut unread = sandbox.exec(["flood"]).spawn().await.unwrap();
    assert_eq!(unread.wait().await.unwrap().code, Some(0));
    // Nor does who lets go of one stream.
    let mut half = sandbox.exec(["flood"]).spawn().await.unwrap();
    drop(half.stdout());
    assert_eq!(half.next().await, None);
    assert_eq!(half.wait().await.unwrap().code, Some(0));
}

#[tokio::test]
async fn a_program_that_cannot_run_is_an_error_and_the_sandbox_stays() {
    let sandbox = start(&FakeBackend::new()).await;
    for _ in 0..200 {
        let error = sandbox.exec(["nonesuch"]).stdin("unread").output().await.unwrap_err();
        assert!(
            matches!(&error, Error::Exec { failure: ExecFailure::NotFound { .. }, .. }),
            "{error}"
        );
        assert_eq!(error.to_string(), "cannot run nonesuch: not found inside the sandbox");
    }
    assert!(sandbox.exec(["true"]).output().await.unwrap().success());
}

#[tokio::test]
async fn a_terminal_is_one_stream_both_ways() {
    let fake = FakeBackend::new().on("sh", |_| FakeReply::stdout("$ ").forever());
    let sandbox = start(&fake).await;
    let mut shell = sandbox.exec(["sh"]).terminal(24, 80).spawn().await.unwrap();
    assert_eq!(fake.calls()[0].terminal, Some(WindowSize { rows: 24, columns: 80 }));
    assert!(shell.stdout().is_none());
    let prompt = shell.next().await.unwrap();
    assert_eq!((prompt.source, &prompt.bytes[..]), (Source::Terminal, &b"$ "[..]));
    let mut keyboard = shell.stdin().unwrap();
    keyboard.write_all(b"ls\n").await.unwrap();
    assert_eq!(shell.next().await.unwrap().bytes, b"ls\n");
    shell.resize(50, 132).unwrap();
    assert_eq!(shell.kill().await.unwrap().signal, Some(9));
    assert_eq!(fake.sizes(), [WindowSize { rows: 50, columns: 132 }]);
    assert!(keyboard.write_all(b"late").await.is_err());
}

#[tokio::test]
async fn attaching_follows_the_runs_own_command_and_letting_go_leaves_it() {
    let fake = FakeBackend::new();
    let own = start(&fake).await;
    let home = own.home().to_owned();
    let visitor = Sandbox::attach_over(&fake, &home, &own.id()).await.unwrap();
    let error = visitor.client().attach(Streams::Output).await.unwrap_err();
    assert!(matches!(error, Error::NotDone(ControlError::NoCommand)), "{error}");
    assert!(visitor.posture().is_none() && own.posture().is_some());

    let fake = fake.attached(FakeReply::stdout("going on").forever());
    let mut attached = visitor.client().attach(Streams::Output).await.unwrap();
    assert_eq!(attached.next().await.unwrap().bytes, b"going on");
    let twice = visitor.client().attach(Streams::Output).await.unwrap_err();
    assert!(matches!(twice, Error::NotDone(ControlError::AlreadyAttached)), "{twice}");
    drop(attached);
    drop(visitor);
    assert!(own.exec(["true"]).output().await.unwrap().success());
    assert_eq!((fake.kills(), fake.live()), (0, 1));
}
