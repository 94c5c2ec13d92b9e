//! The coverage-guided engine: libFuzzer around the target that `FUZZ_TARGET` names.

#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        fuzz::find(&name).expect("FUZZ_TARGET names a target; cargo xtask fuzz sets it")
    });
    target.run(input);
});
