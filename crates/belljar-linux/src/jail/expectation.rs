//! Computes what an attestation of the bound sandbox must contain.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_bind::identity::HostIdentity;
use belljar_bind::{BoundKind, BoundMount, Layer, Via};
use belljar_spec::{Access, Expectation, ExpectedMount, InitState, MountKind, OsText, Plan, Tree};

use super::set_up::init_capabilities;
use crate::user_limits::UserLimits;

/// What the attestation has to find.
pub(super) fn expectation(
    plan: &Plan,
    identity: &HostIdentity,
    mounts: &[BoundMount],
    user_limits: &UserLimits,
) -> Expectation {
    let has_image = mounts.iter().any(|mount| matches!(mount.kind, BoundKind::Image(_)));
    let mut expected = match has_image {
        true => vec![made("/", "overlay", true), made("/dev", "tmpfs", true)],
        false => vec![made("/", "tmpfs", true)],
    };
    for mount in mounts {
        expect_mount(mount, &mut expected);
    }
    let user = plan.identity.inside;
    let (uid_map, gid_map) = super::start::inner_maps(user, identity);
    let is_root = rustix::process::geteuid().is_root();
    let groups = if is_root { Vec::new() } else { groups_inside(identity, user.gid) };
    let writable = plan.mounts.iter().filter(|mount| {
        matches!(&mount.what, MountKind::Bind { access: Access::Writable, tree: Tree::Own, .. })
            || matches!(&mount.what, MountKind::Tmpfs { .. } | MountKind::Sent { .. })
    });
    Expectation {
        user,
        uid_map: Some(normal_map(&uid_map)),
        gid_map: Some(normal_map(&gid_map)),
        kernel: Default::default(),
        groups,
        mounts: expected,
        tolerated: Vec::new(),
        private_mounts: true,
        apart_from: plan.unshared_namespaces(&belljar_sys::namespaces()),
        sizes: plan.sizes(),
        dies_with_launcher: true,
        init: Some(InitState {
            own_session: true,
            capabilities: init_capabilities(identity.init.is_some()).bits(),
        }),
        hostname: Some(plan.hostname.clone()),
        seccomp_filters: crate::filter::PROGRAMS,
        landlock: belljar_sys::landlock_version(),
        rlimits: plan
            .rlimits
            .iter()
            .map(|limit| (limit.name.clone(), limit.value))
            .chain(user_limits.expected())
            .collect::<BTreeMap<_, _>>(),
        environment: plan.command.env.keys().map(|name| OsText::from(name.as_str())).collect(),
        writable: writable
            .map(|mount| mount.target.clone())
            .chain(mounts.iter().flat_map(BoundMount::must_write))
            .collect(),
    }
}

/// One space between numbers, one line a range: the kernel pads them.
pub(crate) fn normal_map(map: &str) -> String {
    let lines = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// An ordinary user cannot drop its supplementary groups; inside they map to nobody, except its primary group.
fn groups_inside(identity: &HostIdentity, inside: u32) -> Vec<u32> {
    const NOBODYS: u32 = 65534;
    let groups = rustix::process::getgroups().unwrap_or_default();
    let shown = |gid: u32| if gid == identity.command.gid { inside } else { NOBODYS };
    groups.into_iter().map(|gid| shown(gid.as_raw())).collect()
}

fn expect_mount(mount: &BoundMount, expected: &mut Vec<ExpectedMount>) {
    let target = |path: &Path| OsText::from(path);
    match &mount.kind {
        BoundKind::Tree(tree) => {
            let read_only = tree.access == Access::ReadOnly;
            let at = |path: &Path, layer: &Layer| ExpectedMount {
                target: target(path),
                identity: (tree.via == Via::Bind)
                    .then_some((layer.pinned.device, layer.pinned.inode)),
                fstype: (tree.via != Via::Bind).then(|| "overlay".to_owned()),
                read_only,
                devices: false,
                suid: false,
            };
            expected.push(at(&mount.target, &tree.layer));
            for (relative, layer) in &tree.submounts {
                expected.push(at(&mount.target.join(relative), layer));
            }
            for (point, access) in tree.mount_points() {
                expected.push(ExpectedMount {
                    target: target(&mount.target.join(point)),
                    identity: None,
                    fstype: None,
                    read_only: access == Access::ReadOnly,
                    devices: false,
                    suid: false,
                });
            }
            for socket in &tree.sockets {
                expected.push(ExpectedMount {
                    target: target(&mount.target.join(socket)),
                    identity: None,
                    fstype: None,
                    read_only: false,
                    devices: true,
                    suid: false,
                });
            }
            for hidden in tree.hidden.iter().filter(|_| tree.via == Via::Bind) {
                expected.push(ExpectedMount {
                    target: target(&mount.target.join(hidden)),
                    identity: None,
                    fstype: None,
                    read_only: true,
                    devices: false,
                    suid: false,
                });
            }
        }
        BoundKind::Tmpfs { .. } => {
            expected
                .push(ExpectedMount { target: target(&mount.target), ..made("", "tmpfs", false) });
        }
        BoundKind::Image(_) | BoundKind::File { .. } | BoundKind::Symlink { .. } => {}
        BoundKind::Proc { read_only, masked } => {
            expected.push(made("/proc", "proc", false));
            expected.extend(read_only.iter().map(|path| made(path, "proc", true)));
            expected.extend(masked.iter().map(|path| ExpectedMount {
                fstype: None,
                devices: true,
                ..made(path, "", false)
            }));
        }
        BoundKind::Dev { nodes, .. } => {
            expected.push(ExpectedMount { devices: true, ..made("/dev/pts", "devpts", false) });
            expected.push(made("/dev/shm", "tmpfs", false));
            expected.extend(nodes.iter().map(|node| ExpectedMount {
                fstype: None,
                devices: true,
                ..made(&format!("/dev/{node}"), "", false)
            }));
        }
    }
}

fn made(path: &str, fstype: &str, read_only: bool) -> ExpectedMount {
    ExpectedMount {
        target: OsText::from(path),
        identity: None,
        fstype: Some(fstype.to_owned()),
        read_only,
        devices: false,
        suid: false,
    }
}
