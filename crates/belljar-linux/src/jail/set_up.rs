//! Sets up the sandbox's first process in its new namespaces, by a list of steps: it builds its root, gives up
//! what it does not need, and becomes `belljar __init`.
//!
//! The list is always run whole and in order. Nothing, no argument and no variable, leaves a step out; the tests do,
//! to show that the comparison with the expectation then refuses the sandbox.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};

use belljar_spec::init_process::OVER_LINKS;
use belljar_spec::{LinkKind, User};
use belljar_sys::{StepError, step};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::apply::{ApplyError, setup_ids};
use super::bind::Bound;
use super::root::Root;
use super::start::{Ends, StdioInside};
use crate::init::{CHANNEL_FD, STDIO_FD};
use crate::sys::mount::make_private;
use crate::sys::mount_ns_child::act_on_files_as;
use crate::sys::process::{arrange_descriptors, exec_descriptor, new_session_keyring};

/// What PID 1 needs where the command has another uid: to become that uid, to empty its child's
/// bounding set, to signal it.
const INIT_CAPABILITIES: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::KILL);

/// One mechanism.
pub(crate) struct SetUpStep {
    /// For the tests, which name the step that they leave out.
    #[cfg(test)]
    name: &'static str,
    #[cfg(test)]
    read_back: ReadBack,
    apply: fn(&mut SetUp<'_>) -> Result<(), ApplyError>,
}

/// Whether the launch is refused without a step.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
enum ReadBack {
    /// The attestation shows it, or a later step fails.
    Refused,
    /// It does not, for this reason.
    NotAttested(&'static str),
}

macro_rules! steps {
    ($($name:ident: $read_back:expr,)+) => {
        &[$(
            SetUpStep {
                #[cfg(test)]
                name: stringify!($name),
                #[cfg(test)]
                read_back: { use ReadBack::*; $read_back },
                apply: $name,
            },
        )+]
    };
}

pub(crate) const SET_UP: &[SetUpStep] = steps![
    // Before the first directory is made: the caller's may hide it from the command.
    reset_umask: NotAttested("it takes nothing away, and the command cannot reach its mounts without it"),
    // Before the first mount, which would propagate to the host or receive its mounts.
    make_mounts_private: NotAttested("each mount is made private again when it is put into the root, which is attested"),
    // Before the first name is made: what is made from here on belongs to the command.
    make_files_as_command: NotAttested("it decides the owner of files in a root that is read-only"),
    // Over the old root, which is reached until `enter_root`.
    make_root: Refused,
    // In the plan's order: what is mounted later covers what was mounted before.
    add_mounts: Refused,
    // After the last name was made in the root itself.
    seal_root: Refused,
    // After the last name was made.
    make_files_as_init: NotAttested("the exec of PID 1 ends it, too"),
    // After the last mount, each of which takes a namespace for a moment. Needs CAP_SYS_RESOURCE.
    limit_counters: Refused,
    // Needs CAP_SYS_ADMIN.
    set_host_name: Refused,
    // After the last file of the host was opened by its path. Needs CAP_SYS_ADMIN.
    enter_root: Refused,
    // Anywhere before PID 1 starts: the caller's terminal controls its session.
    begin_session: Refused,
    // Anywhere before PID 1 starts: the caller's keys are in its session keyring.
    join_new_keyring: NotAttested("the filter refuses every call for keys, and the filter is attested"),
    // After the last step that needs another capability, and before CAP_SETPCAP may go.
    limit_bounding_set: Refused,
    drop_capabilities: Refused,
    // After the capabilities, and before the first program is executed.
    set_no_new_privileges: NotAttested("each command sets it again, and attests it"),
    // After the last change of ids or capabilities, which would clear it.
    die_with_launcher: Refused,
    // After that: a launcher that exited before sends no signal.
    check_launcher: NotAttested("PID 1 ends at the end of its channel, too"),
    // Last: nothing of this process is left.
    become_init: Refused,
];

/// The state of the set-up between two steps.
pub(crate) struct SetUp<'a> {
    bound: &'a Bound,
    /// Until PID 1 gets them.
    ends: Option<Ends>,
    /// While it is being built.
    root: Option<Root>,
}

impl SetUp<'_> {
    fn root(&self) -> Result<&Root, ApplyError> {
        self.root.as_ref().ok_or(ApplyError::Order("the root"))
    }

    /// The capabilities that PID 1 has.
    fn keep(&self) -> CapabilitySet {
        init_capabilities(self.bound.host.identity.init.is_some())
    }
}

/// Those of PID 1, where it has a uid of its own, and where it does not.
pub(super) fn init_capabilities(has_own_uid: bool) -> CapabilitySet {
    if has_own_uid { INIT_CAPABILITIES } else { CapabilitySet::empty() }
}

pub(super) fn run(steps: &[SetUpStep], bound: &Bound, ends: Ends) -> Result<(), ApplyError> {
    let mut set_up = SetUp { bound, ends: Some(ends), root: None };
    steps.iter().try_for_each(|step| (step.apply)(&mut set_up))
}

fn reset_umask(_: &mut SetUp<'_>) -> Result<(), ApplyError> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(())
}

fn make_mounts_private(_: &mut SetUp<'_>) -> Result<(), ApplyError> {
    Ok(step("make mounts private", make_private(c"/"))?)
}

fn make_files_as_command(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    make_files_as(set_up.bound, set_up.bound.host.plan.identity.inside)
}

fn make_files_as_init(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    make_files_as(set_up.bound, setup_ids(set_up.bound))
}

/// PID 1 has other ids than the command, so that no process inside can signal or trace it. Files do not need that: the
/// root is read-only for both, and programs check that `/`, `/tmp` and the like belong to themselves or to root.
fn make_files_as(bound: &Bound, User { uid, gid }: User) -> Result<(), ApplyError> {
    if bound.host.identity.init.is_none() {
        return Ok(());
    }
    Ok(step("change the owner of new files", act_on_files_as(uid, gid))?)
}

fn make_root(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    set_up.root = Some(Root::for_mounts(&set_up.bound.host.mounts)?);
    Ok(())
}

fn add_mounts(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let root = set_up.root()?;
    Ok(set_up.bound.host.mounts.iter().try_for_each(|mount| root.add(mount))?)
}

fn seal_root(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    Ok(set_up.root()?.seal()?)
}

fn limit_counters(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    Ok(set_up.root()?.limit_counters(&set_up.bound.user_limits)?)
}

fn set_host_name(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let name = set_up.bound.host.plan.hostname.as_bytes();
    Ok(step("set the host name", rustix::system::sethostname(name))?)
}

fn enter_root(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    Ok(set_up.root.take().ok_or(ApplyError::Order("the root"))?.enter()?)
}

fn begin_session(_: &mut SetUp<'_>) -> Result<(), ApplyError> {
    step("start a session", rustix::process::setsid())?;
    Ok(())
}

fn join_new_keyring(_: &mut SetUp<'_>) -> Result<(), ApplyError> {
    match new_session_keyring() {
        // A kernel built without keyrings has none to leak.
        Ok(()) | Err(Errno::NOSYS) => Ok(()),
        Err(error) => Err(StepError::new("make a session keyring", error).into()),
    }
}

/// Every capability this kernel has, newer ones too.
fn limit_bounding_set(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let keep = set_up.keep();
    for number in 0..64_u32 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // past the last one
            Err(error) => return Err(StepError::new("empty the bounding set", error).into()),
        }
    }
    Ok(())
}

fn drop_capabilities(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let keep = set_up.keep();
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: keep };
    step("drop capabilities", set_capabilities(None, sets))?;
    for capability in keep.iter() {
        // Not uid 0, so an `exec` would lose them otherwise.
        step("keep a capability over exec", configure_capability_in_ambient_set(capability, true))?;
    }
    Ok(())
}

fn set_no_new_privileges(_: &mut SetUp<'_>) -> Result<(), ApplyError> {
    Ok(step("set no-new-privileges", set_no_new_privs(true))?)
}

fn die_with_launcher(_: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let set = set_parent_process_death_signal(Some(Signal::KILL));
    Ok(step("ask to die with the launcher", set)?)
}

fn check_launcher(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    match &set_up.ends {
        Some(ends) if !is_closed(ends.channel.as_fd()) => Ok(()),
        _ => Err(ApplyError::LauncherGone),
    }
}

fn is_closed(channel: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&channel, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_err() || fds[0].revents().contains(PollFlags::HUP)
}

fn become_init(set_up: &mut SetUp<'_>) -> Result<(), ApplyError> {
    let ends = set_up.ends.take().ok_or(ApplyError::Order("PID 1's descriptors"))?;
    let null =
        |flags| step("open /dev/null", open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty()));
    let mut wanted = vec![null(OFlags::RDONLY)?, null(OFlags::WRONLY)?, null(OFlags::WRONLY)?];
    debug_assert_eq!(wanted.len() as i32, CHANNEL_FD);
    wanted.push(ends.channel);
    debug_assert_eq!(wanted.len() as i32, STDIO_FD);
    if let Some(StdioInside { stdin, stdout, stderr }) = ends.stdio {
        let stdin = match stdin {
            Some(stdin) => stdin,
            None => null(OFlags::RDONLY)?,
        };
        wanted.extend([stdin, stdout, stderr]);
    }
    wanted.push(ends.executable);
    wanted.push(ends.report);
    let report = wanted.len() as i32 - 1;
    step("arrange descriptors", arrange_descriptors(0, wanted))?;
    let executable =
        step("find the executable", crate::sys::process::adopt_descriptor(report - 1))?;
    let report = step("find the report descriptor", crate::sys::process::adopt_descriptor(report))?;
    let mut argv = vec![CString::from(c"belljar"), CString::from(c"__init")];
    if set_up.bound.link == LinkKind::Breakable {
        argv.extend(CString::new(OVER_LINKS).ok());
    }
    let error = exec_descriptor(executable.as_fd(), &argv, &[]);
    let error = ApplyError::from(StepError::new("start belljar __init", error));
    error.report().send(report.as_fd());
    crate::sys::process::exit_now(125)
}

#[cfg(test)]
mod tests;
