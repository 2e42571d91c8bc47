//! Every text that a person or a hostile repository can hand over: read or refused, never a panic,
//! and what is read prints and reads back the same. Run: `cargo +nightly fuzz run manifest`.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use belljar_spec::mount_arg::{BindArg, MountArg, TmpfsArg, WorkspaceArg};
use belljar_spec::{
    Baseline, CeilingFile, Cpus, HostRule, HumanDuration, Layer, Located, Manifest, Origin, Purpose,
    RunId, Settings, Size, env_file, layers, widenings,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = "belljar.toml".into();
    if let Ok(manifest) = Manifest::parse(data, &path) {
        let printed = manifest.to_toml();
        assert_eq!(Manifest::parse(printed.as_bytes(), &path).as_ref(), Ok(&manifest));
        let baseline = Baseline {
            lower: &layers::built_in(Some(1 << 30)),
            higher: &Manifest::default(),
            directory: "/p".as_ref(),
            user_home: None,
            purpose: Purpose::Command,
            locate: &|path| Located::At(path.to_owned()),
            is_control: &|_| false,
        };
        let _ = widenings(&manifest, baseline);
        let ceiling = CeilingFile::parse(data, &path).ok();
        let origin = Origin::Manifest(path.clone());
        let layer = Layer { origin, directory: "/p".into(), values: manifest };
        let _ = Settings::merge(vec![layer], ceiling, None).shown();
    }
    let _ = CeilingFile::parse(data, &path);
    let _ = env_file::parse(data);
    let os_text = OsStr::from_bytes(data);
    let _ = BindArg::parse(os_text);
    let _ = MountArg::parse(os_text);
    let _ = TmpfsArg::parse(os_text);
    let _ = WorkspaceArg::parse(os_text);
    if let Ok(text) = std::str::from_utf8(data) {
        words(text);
    }
});

fn words(text: &str) {
    if let Ok(size) = text.parse::<Size>() {
        assert_eq!(size.to_string().parse(), Ok(size));
    }
    if let Ok(span) = text.parse::<HumanDuration>() {
        assert_eq!(span.to_string().parse(), Ok(span));
    }
    if let Ok(cpus) = text.parse::<Cpus>() {
        assert_eq!(cpus.to_string().parse(), Ok(cpus));
    }
    let _ = text.parse::<RunId>();
    let _ = HostRule::parse(text);
    let _ = layers::from_assignment(text);
}
