//! Budgets of what a start and an `exec` cost. They are counts, which another machine or a busy one changes little, with
//! about a tenth of room; whoever raises one says why in the commit, and whoever makes a start cheaper lowers it.

use std::fs;
use std::time::Duration;

use belljar_testkit::{Cost, Lab, calls_in, each_user, traced, until};

struct Budget {
    name: &'static str,
    root: Cost,
    user: Cost,
}

impl Budget {
    fn check(&self, lab: &Lab, cost: Cost) {
        let budget = if lab.actor.is_root() { &self.root } else { &self.user };
        eprintln!("{} as {:?}: {cost:?}", self.name, lab.actor);
        assert!(cost.is_within(budget), "{}: {cost:?} is over its budget of {budget:?}", self.name);
        // A budget that is never near its limit holds nothing.
        assert!(cost.calls * 2 > budget.calls, "{}: lower the budget to {cost:?}", self.name);
    }
}

const fn cost(calls: u64, syncs: u64, faults: u64, switches: u64) -> Cost {
    Cost { calls, syncs, faults, switches }
}

const START: Budget =
    Budget { name: "a plain start", root: cost(2240, 4, 1340, 45), user: cost(2160, 4, 1320, 45) };
const OVERLAY: Budget = Budget {
    name: "a start with an overlay",
    root: cost(2310, 5, 1370, 75),
    user: cost(2190, 5, 1340, 75),
};
const EXEC: Budget =
    Budget { name: "an exec", root: cost(545, 0, 550, 15), user: cost(560, 0, 550, 15) };

#[test]
fn a_plain_start() {
    each_user(|lab| {
        let start = || lab.run(["-q", "--no-config", "--", "/bin/true"]);
        start().done().expect(0); // the first in a home makes its key, its ledger and its directories
        START.check(lab, Cost::of(lab, start));
    });
}

#[test]
fn a_start_with_an_overlay() {
    each_user(|lab| {
        let workspace = format!("{}:overlay", lab.work().display());
        let start = || lab.run(["-q", "--no-config", "--workspace", &workspace, "--", "/bin/true"]);
        start().done().expect(0);
        OVERLAY.check(lab, Cost::of(lab, start));
    });
}

/// The client's cost, and what it makes the supervisor, PID 1 and the command's processes do.
#[test]
fn an_exec() {
    const TIMES: u64 = 5;
    each_user(|lab| {
        let trace = lab.make_file("tmp/supervisor", "");
        let start = lab.run(["-d", "-q", "--no-config", "--name", "x", "--", "sleep", "1000"]);
        let traced = traced(start, &trace).spawn();
        assert!(until(Duration::from_secs(30), || lab
            .belljar(["exec", "x", "--", "/bin/true"])
            .done()
            .code()
            == 0));
        let settled = || {
            let mut last = 0;
            until(Duration::from_secs(20), || {
                std::thread::sleep(Duration::from_millis(300));
                let now = fs::metadata(&trace).unwrap().len();
                std::mem::replace(&mut last, now) == now
            });
            calls_in(&trace)
        };
        let before = settled();
        let call = || lab.belljar(["exec", "x", "--", "/bin/true"]);
        for _ in 0..TIMES {
            call().done().expect(0);
        }
        let after = settled();
        let client = Cost::of(lab, call);
        lab.belljar(["stop", "x"]).done().expect(0);
        traced.done().expect(0);
        let calls = client.calls + (after.0 - before.0) / TIMES;
        let syncs = client.syncs + (after.1 - before.1) / TIMES;
        EXEC.check(lab, Cost { calls, syncs, ..client });
    });
}
