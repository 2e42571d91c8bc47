//! Checks that a resumed run finds what its first start had: its mounts, its image, and the same plan for its policy.

use std::os::unix::fs::MetadataExt;

use belljar_spec::{Moment, MountKind, OsText, Plan, RunSpec, SourceIdentity, Unchanged};
use serde::Serialize;

use super::LaunchError;
use super::select_backend::Prepared;
use belljar_record::redact::{plan_without_secret_values, secrets_of};

/// What may have changed since the first start, if the operator allows it by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ResumeMismatch {
    /// The image has another digest.
    Image,
    /// A mounted tree is another one.
    Mounts,
    /// The same spec gives another plan: another build of belljar, or another host.
    Policy,
}

impl ResumeMismatch {
    pub const ALL: [Self; 3] = [Self::Image, Self::Mounts, Self::Policy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Mounts => "mounts",
            Self::Policy => "policy",
        }
    }
}

impl std::str::FromStr for ResumeMismatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| {
            let shown = belljar_spec::text::escape(text.as_bytes());
            format!("\"{shown}\" cannot be allowed; there are image, mounts, policy")
        })
    }
}

/// The trees that a run is given, as they are now.
pub(super) fn sources_of(spec: &RunSpec) -> Vec<SourceIdentity> {
    let mounts = spec.workspace.iter().chain(&spec.mounts);
    let paths = mounts.map(|mount| &mount.source).chain(&spec.tools);
    let identity = |path: &OsText| {
        let found = std::fs::metadata(path.as_path()).ok()?;
        let created = found.created().ok().map(Moment::from);
        Some(SourceIdentity {
            path: path.clone(),
            device: found.dev(),
            inode: found.ino(),
            created,
        })
    };
    paths.filter_map(identity).collect()
}

/// Of a plan without its image, and without what differs in every run: its id, and the placeholders of secrets.
pub(super) fn policy_hash(plan: &Plan, spec: &RunSpec) -> String {
    let mut plan = plan_without_secret_values(plan, &secrets_of(spec));
    plan.image = None;
    for mount in &mut plan.mounts {
        if let MountKind::RootImage { manifest, layers } = &mut mount.what {
            manifest.clear();
            layers.clear();
        }
    }
    plan.command.env.remove(belljar_spec::env::RUN_ID_INSIDE);
    for secret in &spec.egress.secrets {
        plan.command.env.remove(&secret.env);
    }
    plan.hash()
}

/// Whether a path leads to what it led to then.
fn is_same(now: &SourceIdentity, then: &SourceIdentity) -> bool {
    let devices = [now.device, then.device];
    let is_device_same = match (now.created, then.created) {
        // The number of a file system without a device of its own (btrfs, overlay, tmpfs) is another after a boot.
        (Some(_), Some(_)) if devices.map(rustix::fs::major) == [0, 0] => true,
        _ => now.device == then.device,
    };
    let is_birth_same = now.created.zip(then.created).is_none_or(|(now, then)| now == then);
    now.inode == then.inode && is_device_same && is_birth_same
}

/// Now that everything is pinned, and nothing was started: it is what it was at the first start.
pub(super) fn check(prepared: &Prepared<'_>) -> Result<(), LaunchError> {
    let Some(resumed_from) = prepared.resumed_from.as_deref() else { return Ok(()) };
    let differs = |what: ResumeMismatch, how: String| Err(LaunchError::Differs { what, how });
    let Unchanged { policy_hash: policy, image, sources } = &resumed_from.unchanged;
    let now = sources_of(&prepared.spec);
    for then in sources {
        let how = match now.iter().find(|source| source.path == then.path) {
            Some(source) if is_same(source, then) => continue,
            Some(_) => "another file or directory is there now",
            None => "it is not there any more",
        };
        return differs(ResumeMismatch::Mounts, format!("{}: {how}", then.path));
    }
    let id = prepared.plan.image.as_ref().map(|image| image.id.clone()).unwrap_or_default();
    if let Some(then) = image.as_ref().filter(|then| **then != id) {
        return differs(ResumeMismatch::Image, format!("it was {then:?}, and is {id:?}"));
    }
    if let Some(then) = policy
        && *then != policy_hash(&prepared.plan, &prepared.spec)
    {
        let how = "the same settings give another sandbox with this belljar on this host";
        return differs(ResumeMismatch::Policy, how.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u64 = (8 << 8) | 1;
    const OTHER_DISK: u64 = (8 << 8) | 2;
    const ANONYMOUS: u64 = 38;
    const OTHER_ANONYMOUS: u64 = 41;

    fn source(device: u64, inode: u64, created: Option<i64>) -> SourceIdentity {
        let created = created.map(|secs| Moment { secs, nanos: 5 });
        SourceIdentity { path: OsText::from("/src"), device, inode, created }
    }

    #[test]
    fn an_inode_that_was_given_away_is_another_one() {
        let then = source(DISK, 7, Some(100));
        assert!(is_same(&source(DISK, 7, Some(100)), &then), "the control");
        assert!(!is_same(&source(DISK, 8, Some(100)), &then));
        assert!(!is_same(&source(DISK, 7, Some(101)), &then));
        assert!(!is_same(&source(OTHER_DISK, 7, Some(100)), &then));
    }

    #[test]
    fn a_boot_gives_new_numbers_to_what_has_no_device() {
        let then = source(ANONYMOUS, 7, Some(100));
        assert!(is_same(&source(OTHER_ANONYMOUS, 7, Some(100)), &then));
        assert!(!is_same(&source(OTHER_ANONYMOUS, 7, Some(101)), &then));
        assert!(!is_same(&source(DISK, 7, Some(100)), &then));
        // Their creation times are not known: the inode number is all there is.
        assert!(is_same(&source(ANONYMOUS, 7, None), &source(ANONYMOUS, 7, None)));
        assert!(!is_same(&source(OTHER_ANONYMOUS, 7, None), &source(ANONYMOUS, 7, None)));
    }

    #[test]
    fn the_record_of_an_older_build_has_no_births() {
        let old = r#"{"path":"/src","device":2049,"inode":7}"#;
        let then: SourceIdentity = serde_json::from_str(old).unwrap();
        assert!(is_same(&source(DISK, 7, Some(100)), &then));
    }
}
