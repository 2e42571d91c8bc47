//! What `apply` prepares is out of reach for every run, also for one that works on the same tree.

use std::fs;

use belljar_testkit::{Input, Lab, each_user};

const FILES: u32 = 1500;

/// Looks for names that nobody was told of, and writes into whatever it finds.
const WATCH: &str = "echo ready
    while [ ! -e stop ]; do
        for name in $(ls -A . sub); do
            case $name in
                f[0-9]*|sub|sub:|.:|there|stop) ;;
                *) echo \"seen $name\"; for f in $name/* sub/$name/* $name; do echo evil > $f; done 2>/dev/null ;;
            esac
        done
    done
    echo over";

fn changes(lab: &Lab, name: &str) {
    let script = format!(
        "for n in $(seq {FILES}); do echo new > f$n; done; seq 200 | sed 's,^,sub/f,' | xargs touch; echo changed > there"
    );
    let words = ["-q", "--no-config", "--name", name, "--workspace", ".:overlay"];
    lab.run(words.iter().chain(&["--", "sh", "-c", &script])).done().expect(0);
}

#[test]
fn a_live_run_on_the_same_tree_sees_nothing_that_is_not_applied_yet() {
    each_user(|lab| {
        lab.make_file("work/there", "before\n");
        lab.make_directory("work/sub");
        changes(lab, "changes");
        let watch = ["-q", "--no-config", "--", "sh", "-c", WATCH];
        let live = lab.run(watch).input(Input::Open).spawn();
        live.wait_for_output("ready");
        lab.belljar(["apply", "--yes", "changes"]).done().expect(0);
        lab.make_file("work/stop", "");
        let done = live.done();
        assert!(done.expect(0).out().ends_with("over\n"), "{done}");
        let seen: Vec<String> =
            done.out().lines().filter(|line| line.starts_with("seen")).map(str::to_owned).collect();
        assert!(seen.is_empty(), "as {:?}: {:?}", lab.actor, &seen[..seen.len().min(5)]);
        assert_eq!(fs::read_to_string(lab.work().join("there")).unwrap(), "changed\n");
        for number in 1..=FILES {
            let content = fs::read_to_string(lab.work().join(format!("f{number}"))).unwrap();
            assert_eq!(content, "new\n", "f{number}");
        }
    });
}

/// The control: the watcher sees a name that comes and goes.
#[test]
fn the_watcher_sees_what_lies_in_the_tree_for_a_moment() {
    each_user(|lab| {
        lab.make_directory("work/sub");
        let watch = ["-q", "--no-config", "--", "sh", "-c", WATCH];
        let live = lab.run(watch).input(Input::Open).spawn();
        live.wait_for_output("ready");
        let staged = lab.make_file("work/.staged/file", "good\n");
        live.wait_for_output("seen .staged");
        assert!(belljar_testkit::until(belljar_testkit::CALL_TIMEOUT, || {
            fs::read_to_string(&staged).is_ok_and(|text| text == "evil\n")
        }));
        lab.make_file("work/stop", "");
        live.done().expect(0);
    });
}
