//! A launcher that is killed at any of its system calls leaves nothing that the next command does not
//! find and finish.
//!
//! strace counts the calls of each process by itself. So there are two sweeps: over the launcher's own
//! calls, where it dies at each of them in turn; and over everybody's, where whichever process first
//! comes to the number dies: the pod, a half-made sandbox, PID 1, or the launcher. That a process is
//! traced does not keep the sandbox from being built and attested, as each sweep's control shows.

use std::time::Instant;

use belljar_testkit::{
    Actor, Call, Fault, Lab, Point, TraceScope, as_root, count_calls, soak, test_user,
};

/// Everything that makes, changes or takes away something that could stay behind.
const CALLS: &[&str] = &[
    "clone",
    "clone3",
    "execve",
    "execveat",
    "fallocate",
    "fdatasync",
    "fork",
    "fsmount",
    "fsync",
    "ftruncate",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "mount",
    "mount_setattr",
    "move_mount",
    "open",
    "open_tree",
    "openat",
    "openat2",
    "pwrite64",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "unlink",
    "unlinkat",
    "vfork",
    "wait4",
    "write",
];

/// What is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Nothing,
    /// A workspace that is written to, and both streams.
    Works,
    /// Takes older runs away when it is over.
    Retains,
}

/// What the home is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HomeIs {
    /// No key, no ledger, nothing.
    Empty,
    Used,
    /// It has a run whose launcher was killed, for the next one to finish.
    WithLost,
}

impl Case {
    fn call(self, lab: &Lab) -> Call<'_> {
        let start = ["--no-config", "-q"];
        let words: &[&str] = match self {
            Self::Nothing => &["--workspace", "none", "--", "/bin/true"],
            Self::Retains => &[
                "--workspace",
                "none",
                "-c",
                "retention.runs=3",
                "-c",
                "retention.sandboxes=1",
                "--",
                "sh",
                "-c",
                "mkdir -p ~/a/b; echo x > ~/a/b/c; ln -s / ~/a/root",
            ],
            Self::Works => &[
                "--",
                "sh",
                "-c",
                "echo out; echo err >&2; mkdir -p d; echo $$ > d/f; (setsid sleep 5 &); exit 0",
            ],
        };
        lab.run(start.iter().chain(words))
    }
}

#[derive(Default)]
struct Tried {
    points: u32,
    killed: u32,
    lost: u32,
}

struct Sweep {
    actor: Actor,
    case: Case,
    home: HomeIs,
    scope: TraceScope,
    /// At most so many of each call, unless there is time for all.
    each: u32,
}

impl Sweep {
    fn lab(&self) -> Lab {
        let lab = Lab::new(self.actor);
        if self.home != HomeIs::Empty {
            // So many that there is an old one to take away, where the case does that.
            for _ in 0..4 {
                self.case.call(&lab).done().expect(0);
            }
        }
        lab
    }

    /// What the launcher of before left, which was killed while its command ran.
    fn lose_one(&self, lab: &Lab) -> String {
        let words = ["--no-config", "-q", "--", "sh", "-c", "echo x > $HOME/f; echo up; sleep 50"];
        let live = lab.run(words).spawn();
        live.wait_for_output("up");
        live.signal(rustix::process::Signal::KILL);
        drop(live);
        let lost = lab.live();
        lab.assert_nothing_lives(&lost);
        assert_eq!(lost.len(), 1, "{lost:?}");
        lost[0].clone()
    }

    fn points(&self) -> Vec<Point> {
        let lab = self.lab();
        if self.home == HomeIs::WithLost {
            self.lose_one(&lab);
        }
        let counts = count_calls(&lab, self.case.call(&lab), self.scope, CALLS);
        let mut points = Vec::new();
        for (call, count) in counts {
            let each = if soak() { count } else { self.each.min(count) };
            // Spread over all of them, the first and the last included.
            let numbers = (0..each).map(|at| 1 + at * (count - 1) / (each - 1).max(1));
            let point = |number| Point { call: call.clone(), number, scope: self.scope };
            points.extend(numbers.map(point));
        }
        points
    }

    fn run(&self) {
        let points = self.points();
        let begun = Instant::now();
        let mut tried = Tried::default();
        let mut lab = self.lab();
        for point in &points {
            if self.home == HomeIs::Empty {
                lab = self.lab();
            }
            self.try_one(&lab, point, &mut tried);
        }
        eprintln!(
            "killed at {} of {} points, {} runs were lost; {:?}, {:?}, {:?} home, as {:?}, {:?}",
            tried.killed,
            tried.points,
            tried.lost,
            self.scope,
            self.case,
            self.home,
            self.actor,
            begun.elapsed()
        );
        lab.assert_all_sound(); // also what later runs could have spoilt
        // The count of some calls differs a little from run to run; most points must have been met.
        assert!(tried.points > 0);
        if self.scope == TraceScope::Launcher {
            assert!(tried.killed * 10 >= tried.points * 9, "most of the points were not met");
        }
        // The control: with a fault that is never reached it works, so being traced is no fault.
        let never = Point { call: "openat".to_owned(), number: 60_000, scope: self.scope };
        let done = never.hit(self.case.call(&lab), Fault::Kill).done();
        done.expect(0);
    }

    fn try_one(&self, lab: &Lab, point: &Point, tried: &mut Tried) {
        eprintln!("{point:?}");
        let lost = (self.home == HomeIs::WithLost).then(|| self.lose_one(lab));
        let before = lab.runs();
        let done = point.hit(self.case.call(lab), Fault::Kill).done();
        tried.points += 1;
        let was_killed = done.ended_by() == Some(9);
        tried.killed += u32::from(was_killed);
        let touched: Vec<String> = lab.live().into_iter().chain(lab.runs()).collect();
        lab.assert_nothing_lives(&touched);

        let found = lab.reconcile();
        assert_eq!(found.left, Vec::<String>::new(), "{point:?}: {done}");
        tried.lost += found.lost.len() as u32;
        lab.assert_no_traces(&touched);
        let again = lab.reconcile();
        assert!(again.is_empty(), "the second pass did something: {again:?}");

        let ids = lab.runs().into_iter().filter(|id| !before.contains(id));
        let new: Vec<_> = ids.map(|id| (id.clone(), lab.assert_sound(&id))).collect();
        assert!(new.len() <= 1, "{new:?}");
        assert_eq!(lab.rows(), lab.runs().len(), "the ledger and the directories differ: {done}");
        if let Some(lost) = lost {
            // By the one that was killed or by the one after it, and only once.
            assert_eq!(lab.assert_sound(&lost)["reason"], "lost");
        }
        if !was_killed {
            // Nothing is told that the record does not say.
            let code = done.code();
            let told = new.first().map(|(_, end)| end["exit"]["code"].as_i64());
            match told {
                Some(Some(recorded)) => assert_eq!(i64::from(code), recorded, "{new:?} {done}"),
                Some(None) => assert_ne!(code, 0, "{new:?} {done}"),
                None => assert_ne!(code, 0, "a success without a record: {done}"),
            }
        }
        self.case.call(lab).done().expect(0);
        assert_eq!(lab.live(), Vec::<String>::new());
    }
}

fn sweep(actor: Actor, case: Case, home: HomeIs, scope: TraceScope, each: u32) {
    Sweep { actor, case, home, scope, each }.run();
}

#[test]
fn killed_at_each_call_of_a_short_run() {
    sweep(Actor::Me, Case::Nothing, HomeIs::Used, TraceScope::Launcher, 4);
}

#[test]
fn killed_at_each_call_of_a_run_that_works() {
    sweep(Actor::Me, Case::Works, HomeIs::Used, TraceScope::Launcher, 3);
}

#[test]
fn killed_at_each_call_of_the_first_run_in_a_home() {
    sweep(Actor::Me, Case::Nothing, HomeIs::Empty, TraceScope::Launcher, 3);
}

/// The one that finishes what another left is killed as well.
#[test]
fn killed_at_each_call_while_it_tidies_up() {
    sweep(Actor::Me, Case::Nothing, HomeIs::WithLost, TraceScope::Launcher, 2);
}

/// Also while old runs are being removed.
#[test]
fn killed_at_each_call_of_a_run_that_takes_older_ones_away() {
    sweep(Actor::Me, Case::Retains, HomeIs::Used, TraceScope::Launcher, 2);
}

#[test]
fn anybody_killed_at_each_call_of_a_run_that_works() {
    sweep(Actor::Me, Case::Works, HomeIs::Used, TraceScope::AllProcesses, 2);
}

#[test]
fn killed_at_each_call_as_an_ordinary_user() {
    if test_user().is_none() {
        assert!(!as_root(), "there is no ordinary user; run `cargo xtask test`");
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
        return;
    }
    sweep(Actor::User, Case::Works, HomeIs::Used, TraceScope::Launcher, 1);
    sweep(Actor::User, Case::Works, HomeIs::Used, TraceScope::AllProcesses, 1);
}
