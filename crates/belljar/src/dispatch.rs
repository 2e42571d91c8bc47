//! Calls what the arguments name: a helper process of the launcher, or a command.

use std::process::ExitCode;

use belljar::spec::EXIT_NOT_STARTED;

use crate::cli::{self, Verb};
use crate::{commands, logging, report};

pub(crate) fn main() -> ExitCode {
    logging::process_started();
    logging::start_in_background(std::env::args_os()); // of a supervisor and a proxy; nothing is logged in PID 1
    // Before anything else: PID 1 of a sandbox must not parse arguments.
    if let Some(code) = belljar::entrypoint::dispatch() {
        return exit(code);
    }
    let arguments = match cli::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = error.exit_code(); // 0 for --help, 2 for wrong usage
            cli::usage::print(&error);
            return exit(code);
        }
    };
    arguments.display.color.apply();
    if let Err(error) = logging::start(arguments.verbose) {
        report::error(&error, None);
        return exit(EXIT_NOT_STARTED);
    }
    exit(match arguments.verb {
        Verb::Run(run) => commands::run::run(run),
        Verb::Resume(args) => commands::resume::resume(&args),
        Verb::Fork(args) => commands::resume::fork(&args),
        Verb::Exec(exec) => commands::exec::run(&exec),
        Verb::Shell(shell) => commands::shell::run(&shell),
        Verb::Attach(attach) => commands::attach::run(&attach),
        Verb::Ps(ps) => commands::ps::run(&ps),
        Verb::Logs(logs) => commands::logs::run(&logs),
        Verb::Show(show) => commands::show::run(&show),
        Verb::Wait(wait) => commands::wait::run(&wait),
        Verb::Stop(stop) => commands::stop::run(&stop),
        Verb::Checkpoint(checkpoint) => commands::checkpoint::run(&checkpoint),
        Verb::Network(network) => commands::network::run(&network),
        Verb::Renew(renew) => commands::renew::run(&renew),
        Verb::Cp(cp) => commands::cp::run(&cp),
        Verb::Diff(diff) => commands::diff::run(&diff),
        Verb::Apply(apply) => commands::apply::run(&apply),
        Verb::Discard(discard) => commands::discard::run(&discard),
        Verb::Rm(rm) => commands::rm::run(&rm),
        Verb::Prune(prune) => commands::prune::run(&prune),
        Verb::Events(events) => commands::events::run(&events),
        Verb::Verify(verify) => commands::verify::run(&verify),
        Verb::Reconcile(reconcile) => commands::reconcile::run(&reconcile),
        Verb::Port(port) => commands::port::run(&port),
        Verb::Why(why) => commands::why::run(&why),
        Verb::Prove(prove) => commands::prove::run(&prove),
        Verb::Doctor(doctor) => commands::doctor::run(&doctor),
        Verb::Setup(setup) => commands::setup::run(&setup),
        Verb::Backends(backends) => commands::backends::run(&backends),
        Verb::Config(config) => commands::config::run(config),
        Verb::Image(image) => commands::image::run(image),
        Verb::Init(init) => commands::init::run(&init),
        Verb::New(new) => commands::new::run(&new),
        Verb::Trust(trust) => commands::trust::run(&trust),
        Verb::Version(version) => commands::version::run(&version),
        Verb::Completions(completions) => commands::completions::run(&completions),
        Verb::Man(man) => commands::man::run(&man),
    })
}

fn exit(code: i32) -> ExitCode {
    ExitCode::from(code.clamp(0, 255) as u8)
}
