//! Dangerous arguments of allowed system calls: leases, whiteouts, ioctls, socket options, odd sockets.

use std::os::unix::fs::FileTypeExt;

use belljar_spec::Clause;

use super::judge::{EPERM, broken, judge, summary, usual};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, Running, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.lease",
        attack: "take a lease on a mounted file, so that programs of the host wait at each open",
        clause: Clause::FsMounts,
        severity: Severity::High,
        run: lease,
    },
    Case {
        name: "fs.whiteout",
        attack: "rename a file so that a device node is left in its place",
        clause: Clause::FsNosuid,
        severity: Severity::Medium,
        run: whiteout,
    },
    Case {
        name: "kernel.ioctl-requests",
        attack: "change a file's attributes, and a terminal's line discipline",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: requests,
    },
    Case {
        name: "kernel.socket-options",
        attack: "hand a socket to the kernel's TLS, and to IPsec",
        clause: Clause::ProcSyscalls,
        severity: Severity::High,
        run: socket_options,
    },
    Case {
        name: "net.socket-types",
        attack: "open sockets of types that no program needs",
        clause: Clause::NetSealed,
        severity: Severity::Medium,
        run: socket_types,
    },
    Case {
        name: "limit.memory-inodes",
        attack: "make empty files in memory until that fails",
        clause: Clause::LimitMemory,
        severity: Severity::Medium,
        run: inodes,
    },
];

const EINVAL: AttemptResult = AttemptResult::Errno(libc::EINVAL);
const ENOTTY: AttemptResult = AttemptResult::Errno(libc::ENOTTY);
const ENOSPC: AttemptResult = AttemptResult::Errno(libc::ENOSPC);
const EAGAIN: AttemptResult = AttemptResult::Errno(libc::EAGAIN);
const ENOPROTOOPT: AttemptResult = AttemptResult::Errno(libc::ENOPROTOOPT);

fn lease(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, given) = (testbed.workspace()?, testbed.place()?);
    let paths = [workspace.join("file"), given.join("file"), given.join("alone")];
    for path in &paths {
        testbed.file(path, "of the host\n")?;
    }
    let run = Run::of(&workspace, "lease").mount(&given, "/ro").mount(&paths[2], "/alone");
    let mut running =
        testbed.start_inside(&run.args(["20000", "/workspace/file", "/ro/file", "/alone"]))?;
    let inside = running.report()?;
    let open = |testbed: &TestBed| {
        let argv =
            ["open-now".as_ref()].into_iter().chain(paths.iter().map(|path| path.as_os_str()));
        testbed.outside(Unprotected::Directly, argv)?.report()
    };
    let host = open(testbed)?;
    running.stop()?;
    if let Some(waits) = host.tries.iter().find(|tried| tried.answer != AttemptResult::Succeeded) {
        return Ok(Verdict::broke(format!("on the host, opening {} has to wait", waits.what)));
    }
    let argv = ["lease".as_ref(), "20000".as_ref()].into_iter();
    let argv = argv.chain(paths.iter().map(|path| path.as_os_str()));
    let mut holder =
        Running::start(&mut testbed.control(Unprotected::Directly, argv), "the control")?;
    holder.report()?;
    let waits = open(testbed)?;
    drop(holder);
    if waits.tries.iter().any(|tried| tried.answer != EAGAIN) {
        return Ok(Verdict::no_control(format!(
            "outside, nobody waits either: {}",
            summary(&waits)
        )));
    }
    Ok(Verdict::held(format!("{}; the host opens each at once", summary(&inside))))
}

fn whiteout(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, place) = (testbed.workspace()?, testbed.place()?);
    let inside = testbed.inside(&Run::of(&workspace, "whiteout").arg("/workspace"))?.report()?;
    let is_node = |directory: &std::path::Path| {
        std::fs::symlink_metadata(directory.join("from"))
            .is_ok_and(|found| found.file_type().is_char_device())
    };
    if is_node(&workspace) {
        return Ok(Verdict::broke("a device node is in the host's tree"));
    }
    testbed.outside(Unprotected::Directly, ["whiteout".as_ref(), place.as_os_str()])?.report()?;
    if !is_node(&place) {
        return Ok(Verdict::no_control("outside, no node is left either"));
    }
    match broken(&inside, &[EPERM, EINVAL]) {
        Some(verdict) => Ok(verdict),
        None => Ok(Verdict::held(summary(&inside))),
    }
}

fn requests(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    testbed.file(&workspace.join("file"), "x")?;
    let inside =
        testbed.inside(&Run::of(&workspace, "requests").arg("/workspace/file"))?.report()?;
    let file = workspace.join("file");
    let argv = ["requests".as_ref(), file.as_os_str()];
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    Ok(judge(&inside, &control, &[EPERM, ENOTTY], |what, answer| match answer {
        // Not every file system has attributes.
        ENOTTY if what == "FS_IOC_SETFLAGS" => super::judge::Control::Absent,
        answer => usual(what, answer),
    }))
}

fn socket_options(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "socket-options"))?.report()?;
    let control = testbed.outside(Unprotected::Scratch, ["socket-options"])?.report()?;
    // Whatever it lacks then (a connection, a module), the kernel has taken the request.
    Ok(judge(&inside, &control, &[EPERM, ENOPROTOOPT], |_, answer| match answer {
        EPERM => super::judge::Control::Refused,
        ENOPROTOOPT => super::judge::Control::Absent,
        _ => super::judge::Control::Through,
    }))
}

fn socket_types(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    // Of each family one that programs use, so that it is the type that is refused.
    let usual_ones = ["1,1,0", "1,2,0", "1,5,0", "2,1,0", "2,2,0", "10,1,0"];
    let used = testbed.inside(&Run::of(&workspace, "sockets").args(usual_ones))?.report()?;
    if used.successes() != usual_ones.len() {
        return Err(TestBedError::Unexpected(format!("usual sockets fail: {}", summary(&used))));
    }
    let odd = ["1,3,0", "1,4,0", "1,6,0", "1,10,0", "2,4,0", "2,5,0", "2,6,0", "10,5,0"];
    let inside = testbed.inside(&Run::of(&workspace, "sockets").args(odd))?.report()?;
    let control =
        testbed.outside(Unprotected::Scratch, ["sockets"].iter().chain(&odd))?.report()?;
    // A kernel has few of them; a raw one of AF_UNIX it always has.
    let refusals = [
        EPERM,
        EINVAL,
        AttemptResult::Errno(libc::ESOCKTNOSUPPORT),
        AttemptResult::Errno(libc::EPROTONOSUPPORT),
    ];
    Ok(judge(&inside, &control, &refusals, super::judge::anywhere))
}

/// More names than a program needs, and far fewer than would fill the kernel's memory.
const MAX_NAMES: u64 = 400_000;
const FEW_NAMES: u64 = 50_000;

fn inodes(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    if testbed.kernel_is_separate() {
        return Ok(Verdict::not_tried(
            "these files are of the run's own kernel, in its own memory",
        ));
    }
    let workspace = testbed.workspace()?;
    let most = if testbed.has_image() { FEW_NAMES } else { MAX_NAMES }.to_string();
    let inside =
        testbed.inside(&Run::of(&workspace, "many-files").args(["/tmp", &most]))?.report()?;
    let files = inside.number("files");
    if inside.answer("make a file") != Some(ENOSPC) {
        return match testbed.has_image() {
            // An engine takes no such option for its file systems in memory.
            true => Ok(Verdict::NotPromised {
                why: format!("{files} files: an engine's memory file systems have no such limit"),
            }),
            false => Ok(Verdict::broke(format!("{files} files, and nothing stopped it"))),
        };
    }
    let place = testbed.place()?;
    let beyond = (files + 1).min(MAX_NAMES).to_string();
    let argv = ["many-files".as_ref(), place.as_os_str(), beyond.as_ref(), "mount".as_ref()];
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    if control.answer("make a file") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("outside, so many could not be made either"));
    }
    Ok(Verdict::held(format!("ENOSPC after {files} files")))
}
