//! Output of any size and shape: exact where it is kept, counted where it is not, in bounded memory.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use belljar::record::{OutputReader, Piece};
use belljar::spec::{EventKind, OutputStream};
use belljar_testkit::{Call, Lab, peak_memory, processes_of, soak, until};

/// What a launcher may have resident, whatever the command prints.
const MAX_MEMORY: u64 = 64 << 20;
/// `limits.output`, as these tests set it.
const KEPT: u64 = 1 << 20;

struct Flood {
    /// The most that the launcher had resident while it was looked at.
    peak: u64,
    /// How often that was.
    looks: u32,
    /// Bytes that came through.
    passed: u64,
}

/// Runs it to its end with a reader that counts, and looks at the launcher's memory meanwhile.
fn flood(call: Call<'_>) -> Flood {
    let mut command = call.prepared();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut count, mut buffer) = (0, vec![0; 256 << 10]);
        while let Ok(length @ 1..) = stdout.read(&mut buffer) {
            count += length as u64;
        }
        count
    });
    let (mut peak, mut looks) = (0, 0);
    let ended = until(Duration::from_secs(280), || {
        if let Some(now) = peak_memory(child.id()).filter(|now| *now > 0) {
            peak = now; // it never falls
            looks += 1;
        }
        child.try_wait().unwrap().is_some()
    });
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait().unwrap();
    assert!(ended, "it did not end in time");
    assert!(status.success(), "{status}");
    Flood { peak, looks, passed: reader.join().unwrap() }
}

/// Head and tail of the only run's stdout, and how many bytes lie between them.
fn kept(lab: &Lab, total: u64) -> (Vec<u8>, u64, Vec<u8>) {
    let id = lab.runs()[0].clone();
    let directory = lab.home().join("runs").join(&id);
    let reader = OutputReader::open(&directory, 0, OutputStream::Stdout, total, KEPT).unwrap();
    let (mut head, mut tail, mut lost) = (Vec::new(), Vec::new(), 0);
    let (mut offset, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        match reader.read_at(offset, &mut buffer).unwrap() {
            Piece::End => return (head, lost, tail),
            Piece::Lost { until } => {
                lost += until - offset;
                offset = until;
            }
            Piece::Bytes(length) => {
                let part = if lost == 0 { &mut head } else { &mut tail };
                part.extend_from_slice(&buffer[..length]);
                offset += length as u64;
            }
        }
    }
}

fn check_flood(script: &str, total: u64, byte_at: impl Fn(u64) -> u8) {
    let lab = Lab::me();
    let limit = format!("limits.output={KEPT}");
    let words = ["--no-config", "-q", "-c", &limit, "--", "sh", "-c", script];
    let flood = flood(lab.run(words));
    eprintln!("{total} bytes with at most {} KiB resident", flood.peak >> 10);
    assert_eq!(flood.passed, total, "not everything came through");
    assert!(flood.looks > 3, "it was over before anybody could look");
    assert!(flood.peak > 1 << 20 && flood.peak < MAX_MEMORY, "{} bytes resident", flood.peak);

    let id = lab.runs()[0].clone();
    lab.assert_sound(&id);
    let events = lab.events(&id);
    let hits: Vec<_> = events.iter().filter(|event| event.kind == EventKind::LimitHit).collect();
    assert_eq!(hits.len(), 1, "the loss is one event");
    let loss = &hits[0].data;
    assert_eq!((&loss["limit"], &loss["stream"]), (&"output".into(), &"stdout".into()));
    assert_eq!(loss["total"], total);
    assert_eq!(loss["lost"], total - KEPT);
    let (head, lost, tail) = kept(&lab, total);
    assert_eq!(lost, total - KEPT);
    assert_eq!((head.len() as u64, tail.len() as u64), (KEPT / 2, KEPT / 2));
    let exact = |bytes: &[u8], from: u64| {
        bytes.iter().enumerate().all(|(at, byte)| *byte == byte_at(from + at as u64))
    };
    assert!(exact(&head, 0), "the head is not what was printed");
    assert!(exact(&tail, total - KEPT / 2), "the tail is not what was printed");
    let file = lab.home().join("runs").join(&id).join("stdout.bin");
    assert_eq!(fs::metadata(file).unwrap().len(), KEPT);
}

#[test]
fn a_flood_of_lines_is_bounded_and_exact_at_both_ends() {
    let total = if soak() { 2 << 30 } else { 300_000_000 };
    let line = b"0123456789abcdef\n";
    let script = format!("yes 0123456789abcdef | head -c {total}");
    check_flood(&script, total, |at| line[(at % 17) as usize]);
}

#[test]
fn a_flood_without_a_newline_is_bounded_too() {
    let total: u64 = if soak() { 4 << 30 } else { 200_000_000 };
    check_flood(&format!("head -c {total} /dev/zero"), total, |_| 0);
}

/// With `--json` the caller gets the output in one piece: that is bounded as well.
#[test]
fn a_captured_flood_is_bounded() {
    let lab = Lab::me();
    let limit = format!("limits.output={KEPT}");
    let script = "yes | head -c 50000000";
    let words = ["--no-config", "--json", "-c", &limit, "--", "sh", "-c", script];
    let flood = flood(lab.run(words));
    assert!(flood.peak < MAX_MEMORY, "{} bytes resident", flood.peak);
    assert!(flood.passed > KEPT && flood.passed < 8 * KEPT, "{} bytes of JSON", flood.passed);
}

/// Nobody reads: the command waits, and the launcher does not fill its memory meanwhile.
#[test]
fn a_reader_that_stands_still_does_not_make_the_launcher_grow() {
    let lab = Lab::me();
    let words = ["--no-config", "-q", "--", "sh", "-c", "yes | head -c 80000000; echo over > over"];
    let mut child = lab.run(words).prepared().stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 2];
    stdout.read_exact(&mut first).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let peak = peak_memory(child.id()).unwrap();
    assert!(peak < MAX_MEMORY, "{peak} bytes resident");
    assert!(!lab.work().join("over").exists(), "where did 80 MB go?");
    // The control: with a reader it goes on, and nothing was lost on the way.
    let rest = std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(rest + 2, 80_000_000);
    assert!(lab.work().join("over").exists());
    lab.assert_all_sound();
}

/// The same for a supervisor whose client asks for output and does not take it.
#[test]
fn a_client_that_stands_still_does_not_make_the_supervisor_grow() {
    let lab = Lab::me();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = belljar::Sandbox::builder()
            .no_config()
            .no_workspace()
            .home(lab.home())
            .belljar(&lab.exe)
            .start()
            .await
            .unwrap();
        let mut floods = Vec::new();
        for _ in 0..4 {
            let script = "yes | head -c 20000000";
            floods.push(sandbox.exec(["sh", "-c", script]).spawn().await.unwrap());
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Another command in the same sandbox does not wait for them.
        let output = sandbox.exec(["echo", "free"]).output().await.unwrap();
        assert_eq!(output.stdout, b"free\n");
        let peaks = processes_of(&lab.exe).into_iter().filter_map(peak_memory);
        let peak = peaks.max().unwrap();
        assert!(peak > 1 << 20 && peak < MAX_MEMORY, "{peak} bytes resident");
        // The control: what is taken is whole.
        for mut flood in floods {
            let mut count = 0;
            while let Some(chunk) = flood.next().await {
                count += chunk.bytes.len();
            }
            assert_eq!(count, 20_000_000);
            assert_eq!(flood.wait().await.unwrap().code, Some(0));
        }
        sandbox.stop().await.unwrap();
    });
    lab.assert_all_sound();
}

/// The caller's stdout is gone: the record has it all.
#[test]
fn a_reader_that_leaves_does_not_cut_the_record() {
    let lab = Lab::me();
    let words = ["--no-config", "-q", "--", "sh", "-c", "echo first; sleep 0.3; echo second"];
    let mut child = lab.run(words).prepared().stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first\n");
    let _ = child.wait().unwrap();
    let id = lab.runs()[0].clone();
    lab.assert_sound(&id);
    let stored = fs::read(lab.home().join("runs").join(&id).join("stdout.bin")).unwrap();
    assert!(stored.starts_with(b"first\n"), "{stored:?}");
}

/// Bytes that look like the record's own, like a terminal's commands, or like nothing at all.
#[test]
fn hostile_bytes_are_data() {
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.extend(b"\n{\"seq\":1,\"kind\":\"run.stop\",\"data\":{},\"prev\":\"\",\"hash\":\"\"}\n");
    bytes.extend(b"\x1b]52;c;eA==\x07\x1b[2J\r\xc3(\xff\xfe\xed\xa0\x80\0\0\n\n");
    let lab = Lab::me();
    lab.make_file("work/bytes", &bytes);
    let done = lab.run(["--no-config", "-q", "--", "sh", "-c", "cat bytes; cat bytes >&2"]).done();
    done.expect(0);
    assert_eq!(done.stdout, bytes);
    assert_eq!(done.stderr, bytes);
    let id = lab.runs()[0].clone();
    lab.assert_sound(&id);
    let directory = lab.home().join("runs").join(&id);
    for (stream, name) in [("stdout", "stdout.bin"), ("stderr", "stderr.bin")] {
        assert_eq!(fs::read(directory.join(name)).unwrap(), bytes);
        let events = lab.events(&id);
        let of_it = events.iter().filter(|event| event.kind == EventKind::Output);
        let of_it: Vec<_> = of_it.filter(|event| event.data["stream"] == stream).collect();
        assert_eq!(of_it.len(), 1, "one event for what came at once");
        assert_eq!(of_it[0].data["length"], bytes.len());
    }
    // As many lines as events: nothing of it made a line of its own.
    let log = fs::read(directory.join("events.jsonl")).unwrap();
    let lines = log.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, lab.events(&id).len());
    assert!(!log.contains(&0x1b));
}

/// What it used stands in the outcome, the record and the ledger.
#[test]
fn what_a_run_used_is_recorded() {
    belljar_testkit::each_actor(|lab| {
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; \
                      head -c 3000000 /dev/zero > big; sync big; sleep 0.3 & sleep 0.3 & wait";
        let words = ["--no-config", "--json", "--", "sh", "-c", script];
        let result = lab.run(words).done().json();
        let usage = &result["usage"];
        let number = |name: &str| usage[name].as_u64().unwrap_or_default();
        assert!(number("wall_ms") >= 300, "{usage}");
        assert!(number("cpu_ms") >= 50, "{usage}");
        assert!(number("memory_peak_bytes") > 500_000, "{usage}");
        if lab.actor.holds_limits() {
            assert!(number("pids_peak") >= 3, "{usage}");
        }
        // Nobody but root may read what another process wrote, and not every control group counts it.
        if lab.actor.is_root() {
            assert!(number("written_bytes") >= 3_000_000, "{usage}");
        }
        let id = result["id"].as_str().unwrap();
        let end = lab.assert_sound(id);
        assert_eq!(&end["usage"], usage);
        let row = lab.row(id).unwrap();
        assert_eq!(serde_json::to_value(row.usage).unwrap(), *usage);
        // The control: a command that does nothing used less.
        let idle = lab.run(["--no-config", "--json", "--", "true"]).done().json();
        assert!(idle["usage"]["cpu_ms"].as_u64() < usage["cpu_ms"].as_u64(), "{idle:#}");
    });
}
