//! A bound launch: all that the run needs is pinned, and nothing of it has begun.

use belljar_backend::Bound;
use belljar_bind::file_clock::Arrival;
use belljar_record::redact::secrets_of;

use super::super::log::NewLog;
use super::super::run_dir::RunDir;
use super::super::{LaunchError, agent, network_bridge};
use super::recorded::Recorded;
use super::{Launch, NotRun};
use crate::login::{RunLogin, refresh_token};
use crate::supervise::{DiskLimit, LaunchOptions, Layers, LoginKeeper, NetworkBridge};

pub(super) struct BoundLaunch<'l, 'b> {
    pub(super) launch: Launch<'l, 'b>,
    pub(super) run_dir: RunDir,
    pub(super) pinned: Pinned,
}

pub(super) struct Pinned {
    pub(super) arrived: Arrival,
    pub(super) bound: Bound,
    pub(super) disk: Option<DiskLimit>,
    pub(super) bridge: NetworkBridge,
}

impl<'l, 'b> BoundLaunch<'l, 'b> {
    /// Makes the log. `run.start` is written while the sandbox is built.
    pub(super) fn record(self) -> Result<Recorded<'l, 'b>, NotRun> {
        let Self { launch, run_dir, pinned: Pinned { arrived, bound, disk, bridge } } = self;
        bound.warnings.iter().for_each(|warning| launch.observer.warned(warning));
        let Launch { home, prepared, secrets, .. } = &launch;
        let masks = network_bridge::masks(&secrets_of(&prepared.spec), secrets);
        let login = RunLogin::of(&prepared.spec);
        let masks = masks.and(login.iter().filter_map(|login| refresh_token(&login.source)));
        let log = NewLog::create(home, &run_dir, prepared, masks).map_err(NotRun::without_end)?;
        let live = run_dir.sign.share().map_err(|error| {
            NotRun::without_end(LaunchError::Record { path: run_dir.live.clone(), error })
        })?;
        let checkpoint = agent::subject(home, &run_dir, prepared, &bound);
        let options = LaunchOptions {
            run: run_dir.id,
            arrived,
            keep: prepared.keep,
            ttl: prepared.ttl,
            disk,
            layers: Layers {
                run: run_dir.id,
                directory: run_dir.directory.clone(),
                trees: bound.layered.clone(),
            },
            socket: home.socket_path(&run_dir.id),
            live,
            network: bridge,
            agent: agent::loop_options(&checkpoint, prepared, &bound),
            checkpoint,
            rules: crate::exec_rules::ExecRules::new(&prepared.spec.commands),
            login: login.and_then(|login| LoginKeeper::new(login, secrets)).map(Box::new),
        };
        Ok(Recorded { launch, run_dir, bound, log, options })
    }
}
