//! Refuses an agent without permission prompts where the boundary does not hold.

use belljar_spec::manifest::{Auth, Permissions};
use belljar_spec::{BackendName, Clause, Enforcement, Posture, RunSpec};

use super::LaunchError;

/// What stands between the agent and the host. No waiver counts here.
const BOUNDARY: &[Clause] = &[
    Clause::FsMounts,
    Clause::FsReadonly,
    Clause::FsNosuid,
    Clause::NetSealed,
    Clause::ProcHidden,
    Clause::ProcUnprivileged,
    Clause::ProcSyscalls,
    Clause::LifeBound,
    Clause::AuditOutside,
];

pub(super) fn bypasses(spec: &RunSpec) -> bool {
    spec.agent_spec().is_some_and(|agent| agent.permissions == Permissions::Bypass)
}

/// Refuses to let an agent act without asking where the posture does not hold.
pub(super) fn check(
    spec: &RunSpec,
    backend: BackendName,
    posture: &Posture,
) -> Result<(), LaunchError> {
    if !bypasses(spec) {
        return Ok(());
    }
    let open = |clause: &&Clause| !posture.get(**clause).is_enforced();
    let Some(clause) = BOUNDARY.iter().find(open) else { return Ok(()) };
    let enforcement = posture.get(*clause);
    Err(needs(format!(
        "a boundary that holds, and on {backend} {clause} is {} ({}); or use --permissions accept-edits or ask",
        enforcement.status(),
        enforcement.reason()
    )))
}

/// There is no boundary at all.
pub(super) fn on_host() -> LaunchError {
    needs("a boundary, and the host backend has none; take another backend".to_owned())
}

fn needs(needs: String) -> LaunchError {
    LaunchError::Needs { option: "permissions = \"bypass\"".to_owned(), needs }
}

/// A login inside is a credential inside.
pub(super) fn mark_login(spec: &RunSpec, posture: &mut Posture) {
    if spec.agent_spec().is_some_and(|agent| agent.auth == Auth::Files) {
        let why = "a copy of the agent's login lies in the run's home, where the agent can read it";
        let fix = "use auth = \"login\" or \"secret\"";
        posture.set(Clause::EnvClean, Enforcement::weaker(why).with_fix(fix));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::path::PathBuf;

    use belljar_backend::{Fetch, Images};
    use belljar_spec::manifest::{AgentKind, Manifest};
    use belljar_spec::wire::control::Keep;
    use belljar_spec::{BackendChoice, HostFacts, Layer, Origin, Request, Settings, resolve};

    use super::super::prepare;
    use super::*;

    fn spec(permissions: Permissions, auth: Auth) -> RunSpec {
        let mut values = Manifest::default();
        values.agent.kind = Some(AgentKind::Claude);
        values.agent.prompt = Some("p".into());
        values.agent.permissions = Some(permissions);
        values.agent.auth = Some(auth);
        let directory = PathBuf::from("/w");
        let layer = Layer { origin: Origin::BuiltIn, directory: directory.clone(), values };
        let settings = Settings::merge(vec![layer], None, None);
        let request = Request::new(belljar_spec::MainCommand::Agent, directory);
        resolve(&settings, &request, &HostFacts::default()).unwrap()
    }

    fn posture(open: Option<Clause>) -> Posture {
        let mut posture = Posture::nothing_held("x");
        for clause in Clause::ALL.iter().filter(|clause| Some(**clause) != open) {
            posture.set(*clause, Enforcement::enforced("y"));
        }
        posture
    }

    #[test]
    fn every_part_of_the_boundary_has_to_hold_and_nothing_else() {
        let spec = spec(Permissions::Bypass, Auth::Secret);
        check(&spec, BackendName::Jail, &posture(None)).unwrap();
        for clause in Clause::ALL {
            let checked = check(&spec, BackendName::Jail, &posture(Some(*clause)));
            assert_eq!(checked.is_err(), BOUNDARY.contains(clause), "{clause}");
            if let Err(error) = checked {
                let text = error.to_string();
                assert!(text.contains(clause.name()) && text.contains("--permissions"), "{text}");
            }
        }
    }

    #[test]
    fn on_the_host_nobody_is_let_loose() {
        let refused = |permissions| {
            let mut spec = spec(permissions, Auth::Secret);
            spec.backend = BackendChoice::Host;
            spec.workspace = None;
            let images = Images { store: None, fetch: Fetch::No };
            prepare(spec, Keep::UntilStopped, images).unwrap_err().to_string()
        };
        assert!(refused(Permissions::Bypass).contains("bypass"));
        // Who asks first is not held up by this.
        assert!(!refused(Permissions::Ask).contains("bypass"));
    }

    #[test]
    fn who_asks_needs_no_more_than_any_run() {
        for permissions in [Permissions::AcceptEdits, Permissions::Ask] {
            let spec = spec(permissions, Auth::Secret);
            check(&spec, BackendName::Docker, &posture(Some(Clause::NetSealed))).unwrap();
        }
    }

    #[test]
    fn a_login_inside_shows_in_the_posture() {
        for (auth, holds) in [(Auth::Secret, true), (Auth::Login, true), (Auth::Files, false)] {
            let mut posture = posture(None);
            mark_login(&spec(Permissions::Bypass, auth), &mut posture);
            assert_eq!(posture.get(Clause::EnvClean).is_enforced(), holds);
        }
    }
}
