//! Uses the library as a second launcher of the same user would.

use std::collections::BTreeMap;

use belljar::home::Home;
use belljar::ledger::{AnchorRow, Ledger, LedgerRow};
use belljar::record::{Anchor, EventReader, HomeKey, LogState, Report, verify_run};
use belljar::run::{Reconciled, reconcile};
use belljar::spec::{Event, EventKind, RunId};
use rustix::process::{Gid, Uid};

use super::Lab;

impl Lab {
    /// Runs a function as the owner of the home. On Linux each thread has its own user ids.
    pub fn as_owner<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(user) = self.actor.user() else { return work() };
        std::thread::scope(|scope| {
            let become_it_and_work = || {
                let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                work()
            };
            scope.spawn(become_it_and_work).join().unwrap()
        })
    }

    /// What any next command does after its own start.
    pub fn reconcile(&self) -> Reconciled {
        let home = self.home();
        self.as_owner(|| reconcile(&Home::open_at(home).unwrap()).unwrap())
    }

    /// The run's row in the ledger.
    pub fn row(&self, id: &str) -> Option<LedgerRow> {
        let home = self.home();
        super::wait_for_index(&home);
        self.as_owner(|| {
            let home = Home::open_at(home).unwrap();
            Ledger::open(&home).unwrap().get(&id.parse().unwrap()).unwrap()
        })
    }

    /// How many runs the ledger knows.
    pub fn rows(&self) -> usize {
        let home = self.home();
        super::wait_for_index(&home);
        self.as_owner(|| Ledger::open(&Home::open_at(home).unwrap()).unwrap().ids().unwrap().len())
    }

    /// Checks one run's record against the ledger's anchor.
    pub fn verify(&self, id: &str) -> Report {
        let anchor = self
            .row(id)
            .and_then(|row| row.anchor)
            .map(|AnchorRow { seq, hash, inode, durable }| Anchor { seq, hash, inode, durable });
        let (home, run) = (self.home(), id.parse::<RunId>().unwrap());
        self.as_owner(|| {
            let directory = home.join("runs").join(run.as_str());
            let key = HomeKey::load(&home).unwrap();
            verify_run(&directory, &run, &key, anchor.as_ref(), LogState::Over)
        })
    }

    /// The events of a run, in their order.
    pub fn events(&self, id: &str) -> Vec<Event> {
        let directory = self.home().join("runs").join(id);
        self.as_owner(|| {
            let mut reader = EventReader::open(&directory).unwrap();
            let mut events = Vec::new();
            while let Some(event) = reader.next().unwrap() {
                events.push(event);
            }
            events
        })
    }

    /// The record holds, and has one start and one end; the data of the end.
    #[track_caller]
    pub fn assert_sound(&self, id: &str) -> serde_json::Value {
        let report = self.verify(id);
        let events = self.events(id);
        let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        assert!(report.verdict.is_sound(), "run {id}: {}; {kinds:?}", report.verdict);
        let count = |kind| kinds.iter().filter(|other| **other == kind).count();
        let ends = (count(EventKind::RunStart), count(EventKind::RunStop));
        assert_eq!(ends, (1, 1), "run {id} has another count of starts and ends: {kinds:?}");
        let stop = events.into_iter().find(|event| event.kind == EventKind::RunStop);
        stop.unwrap().data
    }

    /// Every run that has a directory, with the data of its end.
    #[track_caller]
    pub fn assert_all_sound(&self) -> BTreeMap<String, serde_json::Value> {
        self.runs().into_iter().map(|id| (id.clone(), self.assert_sound(&id))).collect()
    }
}
