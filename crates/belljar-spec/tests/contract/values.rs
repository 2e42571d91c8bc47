//! Every small value: what is printed reads back the same, and no input makes a parser panic.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use belljar_spec::mount_arg::{BindArg, MountArg, TmpfsArg, WorkspaceArg};
use belljar_spec::{
    Clause, Cpus, HostRule, HumanDuration, MountMode, OsText, RunId, Size, User, env_file, paths,
};
use proptest::prelude::*;

fn mode() -> impl Strategy<Value = MountMode> {
    prop::sample::select(MountMode::ALL)
}

/// Any bytes that `-v` can hold in a path.
fn path_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>().prop_filter("special", |b| *b != 0 && *b != b':'), 1..20)
}

/// The same for `--mount`, where the comma separates.
fn mount_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>().prop_filter("special", |b| *b != 0 && *b != b','), 1..20)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[0-9.kmgtibKMGTIB hsd]{0,24}"]
}

proptest! {
    #[test]
    fn a_size_reads_back(bytes: u64) {
        prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        let json = serde_json::to_string(&Size(bytes)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Size>(&json).unwrap(), Size(bytes));
    }

    #[test]
    fn a_round_size_reads_back(count in 0_u64..4096, shift in 0_u32..52) {
        let size = Size(count << shift);
        prop_assert_eq!(size.to_string().parse(), Ok(size));
    }

    #[test]
    fn a_span_reads_back(millis: u64) {
        let span = HumanDuration::from_millis(millis);
        prop_assert_eq!(span.to_string().parse(), Ok(span));
        let json = serde_json::to_string(&span).unwrap();
        prop_assert_eq!(serde_json::from_str::<HumanDuration>(&json).unwrap(), span);
    }

    #[test]
    fn processors_read_back(thousandths in 1_u32..) {
        let cpus = Cpus::from_millis(thousandths).unwrap();
        prop_assert_eq!(cpus.to_string().parse(), Ok(cpus));
    }

    #[test]
    fn a_run_id_reads_back_and_keeps_its_time(millis in 0_u64..1 << 45, random: u64) {
        let id = RunId::from_parts(millis, random);
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        prop_assert_eq!(id.unix_millis(), millis);
        prop_assert!(id.matches(id.tail()) && id.matches(id.as_str()));
        let json = serde_json::to_string(&id).unwrap();
        prop_assert_eq!(serde_json::from_str::<RunId>(&json).unwrap(), id);
    }

    #[test]
    fn run_ids_sort_like_their_times(a in 0_u64..1 << 45, b in 0_u64..1 << 45, random: (u64, u64)) {
        let ids = (RunId::from_parts(a, random.0), RunId::from_parts(b, random.1));
        if a < b {
            prop_assert!(ids.0 < ids.1);
        }
    }

    #[test]
    fn a_volume_reads_back(source in path_bytes(), target in path_bytes(), mode in mode()) {
        let spelled = [&source[..], b":", &target, b":", mode.name().as_bytes()].concat();
        let want = BindArg {
            source: OsText::from_bytes(source),
            target: OsText::from_bytes(target),
            mode,
        };
        prop_assert_eq!(BindArg::parse(OsStr::from_bytes(&spelled)), Ok(want));
    }

    #[test]
    fn a_mount_reads_back(source in mount_bytes(), target in mount_bytes(), mode in mode()) {
        let spelled =
            [b"type=bind,src=", &source[..], b",dst=", &target, b",mode=", mode.name().as_bytes()];
        let want = BindArg {
            source: OsText::from_bytes(source.clone()),
            target: OsText::from_bytes(target.clone()),
            mode,
        };
        let parsed = MountArg::parse(OsStr::from_bytes(&spelled.concat()));
        prop_assert_eq!(parsed, Ok(MountArg::Bind(want)));
    }

    #[test]
    fn a_tmpfs_reads_back(target in path_bytes(), size in 1_u64..) {
        let spelled = [&target[..], b":size=", Size(size).to_string().as_bytes()].concat();
        let want = TmpfsArg { target: OsText::from_bytes(target), size: Size(size) };
        prop_assert_eq!(TmpfsArg::parse(OsStr::from_bytes(&spelled)), Ok(want));
    }

    #[test]
    fn a_workspace_reads_back(path in path_bytes(), mode in mode()) {
        let spelled = [&path[..], b":", mode.name().as_bytes()].concat();
        let want = WorkspaceArg::Directory { path: OsText::from_bytes(path), mode: Some(mode) };
        prop_assert_eq!(WorkspaceArg::parse(OsStr::from_bytes(&spelled)), Ok(want));
    }

    #[test]
    fn any_bytes_survive_json(bytes: Vec<u8>) {
        let text = OsText::from_bytes(bytes);
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(serde_json::from_str::<OsText>(&json).unwrap(), text);
    }

    #[test]
    fn what_is_shown_cannot_drive_a_terminal(bytes: Vec<u8>) {
        let shown = OsText::from_bytes(bytes).to_string();
        let moves = shown.contains(|c: char| c.is_control() || c == '\u{202e}');
        prop_assert!(!moves);
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in text()) {
        let _ = text.parse::<Size>();
        let _ = text.parse::<HumanDuration>();
        let _ = text.parse::<Cpus>();
        let _ = text.parse::<RunId>();
        let _ = text.parse::<Clause>();
        let _ = text.parse::<User>();
        let _ = HostRule::parse(&text);
        let _ = serde_json::from_str::<OsText>(&text);
    }

    #[test]
    fn no_bytes_make_a_parser_panic(bytes: Vec<u8>) {
        let text = OsString::from_vec(bytes.clone());
        let _ = BindArg::parse(&text);
        let _ = MountArg::parse(&text);
        let _ = TmpfsArg::parse(&text);
        let _ = WorkspaceArg::parse(&text);
        let _ = env_file::parse(&bytes);
        let _ = env_file::parse_assignment(&bytes);
    }

    #[test]
    fn a_clean_path_has_no_dots_and_stays_clean(bytes in "[./a~]{0,16}") {
        let base = std::path::Path::new("/base/b");
        let cleaned = paths::absolute(bytes.as_ref(), base, Some("/home/u".as_ref()));
        prop_assert!(cleaned.is_absolute());
        let dotted = |part: std::path::Component<'_>| {
            matches!(part, std::path::Component::ParentDir | std::path::Component::CurDir)
        };
        prop_assert!(!cleaned.components().any(dotted), "{}", cleaned.display());
        prop_assert_eq!(paths::clean(&cleaned), cleaned);
    }
}
