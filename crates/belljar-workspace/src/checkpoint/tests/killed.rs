//! A process that is killed while it takes checkpoints leaves whole ones, or none.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_bind::snapshot;

use super::super::{CHECKPOINTS, path, prune, take};
use super::EVER;
use super::support::{Stage, listing};

const FILES: usize = 60;

fn given() -> PathBuf {
    std::env::var_os("BELLJAR_TEST_TREE").unwrap().into()
}

/// Killed by the test below. Each file of an iteration says which it is of.
#[test]
#[ignore = "never ends by itself"]
fn takes_for_ever() {
    let at = given();
    let subject = Stage::again(&at);
    let first = fs::read_dir(at.join("run").join(CHECKPOINTS)).map_or(0, |all| {
        let names = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        names.max().unwrap_or(0)
    });
    for iteration in first + 1.. {
        let data = at.join("run/upper/0/data");
        for number in 0..FILES {
            fs::create_dir_all(data.join(format!("d{}", number % 7))).unwrap();
            let name = format!("d{}/f{number}", number % 7);
            fs::write(data.join(name), iteration.to_string()).unwrap();
        }
        take(&subject, iteration, EVER).unwrap();
        prune(&at.join("run"), 3);
    }
}

/// For one child, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

fn has_whole(checkpoints: &Path) -> bool {
    let mut entries = fs::read_dir(checkpoints).unwrap();
    entries.any(|entry| entry.unwrap().file_name().to_string_lossy().parse::<u32>().is_ok())
}

#[test]
fn what_has_its_name_is_whole() {
    let stage = Stage::new(5);
    stage.write_upper("never changes", "x");
    let (mut met, mut torn) = (0, 0);
    // A busy machine may need more of them until both kinds were met.
    for round in 0..300_u64 {
        if round >= 25 && met > 0 && torn > 0 {
            break;
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "checkpoint::tests::killed::takes_for_ever"])
            .env("BELLJAR_TEST_TREE", stage.temp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let all = stage.run().join(CHECKPOINTS);
        while !all.exists() && begun.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Where a checkpoint takes longer than any of these delays, one is waited for.
        while round >= 25 && met == 0 && !has_whole(&all) && begun.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(10_000 + round * 13_700 % 90_000));
        child.kill().unwrap();
        child.wait().unwrap();
        for entry in fs::read_dir(&all).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Ok(iteration) = name.parse::<u32>() else {
                torn += 1;
                continue;
            };
            met += 1;
            let data = path(&stage.run(), iteration).join("upper/0/data");
            for number in 0..FILES {
                let text = fs::read_to_string(data.join(format!("d{}/f{number}", number % 7)));
                assert_eq!(text.unwrap(), iteration.to_string(), "round {round}");
            }
            assert_eq!(fs::read_to_string(data.join("never changes")).unwrap(), "x");
            let to = stage.temp.path().join("restored");
            fs::create_dir(&to).unwrap();
            snapshot::restore(&data, &to).unwrap();
            assert_eq!(listing(&to), listing(&data));
            fs::remove_dir_all(to).unwrap();
        }
    }
    assert!(met > 0 && torn > 0, "both were met: {met} whole, {torn} not");
}
