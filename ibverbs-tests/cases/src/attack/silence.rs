//! Peers that there are not.

use std::time::Duration;

use anyhow::Result;
use harness::runner::Case;
use harness::setting::Setting;

use super::limits::Limits;
use super::phase::Length;
use super::scene::{Attack, Scene, number_said};

/// Time of a second that the card thread may take for each address that it asks for, while no program does anything.
const FOR_EACH: Duration = Duration::from_micros(8);

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    vec![super::case(length, "neighbours that do not answer", &[], silent)]
}

/// Each QP asks for an address of its own.
fn silent(setting: &Setting, length: Length) -> Result<()> {
    let (processes, of_each) = length.of((1, 10_000), (4, 14_000));
    let scene = Scene::open(setting, length, "--soft 2")?;
    let program = |number| format!("silent --qps {of_each} --first {}", number * of_each);
    let limits = Limits { memory: 64 * processes, growth: 4, descriptors: 40 };
    let programs = (0..processes).map(program).collect();
    // The attackers wait; the card thread works.
    let attack = Attack { programs, threads: 1, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        let taken = scene.alone(|scene| {
            let begin = scene.level()?;
            std::thread::sleep(Duration::from_secs(1));
            Ok(scene.level()?.cards.saturating_sub(begin.cards))
        })?;
        let mut addresses = 0;
        for program in programs {
            addresses += u32::try_from(number_said(program, "silent ")?)?;
        }
        let limit = FOR_EACH * addresses;
        // Few of them cost less than that the card thread looks out for more work when it has had some.
        excess.unless(length == Length::Short || taken <= limit, || {
            format!(
                "{addresses} open questions take {taken:?} of a second, and {limit:?} are the limit"
            )
        });
        scene.note(format!("{addresses} open questions take {taken:?} of a second"));
        Ok(())
    })
}
