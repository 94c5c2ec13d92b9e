//! Rounds of flash and rollback in which anything dies, drawn by seeds.

use super::*;

/// Draws numbers, always the same ones for a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

/// Rounds of flash and rollback, in each of which the tool, balboad, the card's power or the card itself may fail at
/// any time. Behind each of them the card has the image that it had, the one it was given, or says that it has none.
fn rounds(seed: u64, count: u32) {
    let mut draw = Draw(seed);
    let mut world = World::start(tempfile::tempdir().unwrap());
    let mut has = world.known_logic();
    // How often a round ended with another image, with another engine, with none, and with a balboad that died while an
    // image was on its way.
    let (mut flashed, mut turned, mut lost, mut died) = (0, 0, 0, 0);
    // A card keeps its order to spoil an image until it is given one, which may be rounds later.
    let mut is_spoilt = false;
    for round in 0..count {
        let chunks = u64::from(BYTES) / CHUNK as u64;
        if is_spoilt {
            world.bench.server.flasher.pace().limit = IMPATIENT;
        }
        if draw.below(2) == 0 {
            let all = [Spoil::PowerLost, Spoil::WrongBit, Spoil::Stall, Spoil::NoEnd];
            let how = all[draw.below(4) as usize];
            world.spoil(draw.below(chunks) as u32, how);
            is_spoilt = true;
        }
        let tool = world.tool();
        let previous = world.record().previous.as_ref();
        let previous = previous.map(|it| (it.logic[0].parse().unwrap(), it.logic.len()));
        let (wanted, request) = match (draw.below(4), previous) {
            (0, Some(previous)) => {
                (previous, Some(Request::FlashRollback { card: 0, force: false }))
            }
            _ => {
                let wanted = (Logic::ALL[draw.below(2) as usize], 1 + draw.below(4) as usize);
                world.bring(&tool, &image_of(wanted.0, wanted.1));
                (wanted, (draw.below(8) > 0).then_some(Request::FlashApply { force: false }))
            }
        };
        let mut told = None;
        match (draw.below(3), request) {
            (_, None) => drop(tool),
            // The tool dies, and balboad goes on by itself.
            (0, Some(request)) => {
                world.bench.ask(&tool, request);
                drop(tool);
            }
            // balboad dies somewhere on the way.
            (1, Some(request)) => {
                world.begin(&tool, &request, draw.below(3 * chunks));
                drop(tool);
                let before = world.record().writing.is_some();
                world = World::start(world.end());
                (is_spoilt, died) = (false, died + u32::from(before));
            }
            (_, Some(request)) => {
                world.bench.ask(&tool, request);
                told = Some(world.outcome(&tool));
            }
        }
        let tool = world.tool();
        let ended = world.outcome(&tool);
        let now = world.known_logic();
        let at = format!("round {round} of seed {seed}: had {has:?}, wanted {wanted:?}, {ended:?}");
        assert!(now.is_none() || now == has || now == Some(wanted), "{at}: has {now:?}");
        match told {
            Some(FlashState::Done) => assert_eq!(now, Some(wanted), "{at}"),
            Some(FlashState::Failed(_)) => {
                assert!(now.is_none() || now == has, "{at}: has {now:?}")
            }
            _ => {}
        }
        flashed += u32::from(now.is_some() && now != has);
        let engine = |it: Option<(Logic, usize)>| it.map(|(logic, _)| logic);
        turned += u32::from(has.is_some() && now.is_some() && engine(now) != engine(has));
        lost += u32::from(now.is_none());
        has = now;
        // A spoilt card that was not given anything yet.
        world.card.reset().unwrap();
        if has.is_some() {
            world = World::start(world.end());
            is_spoilt = false;
            assert_eq!(world.known_logic(), has, "{at}");
        }
    }
    let counts = format!("{flashed} flashed, {turned} turned, {lost} lost, {died} died");
    assert!(flashed > 0 && lost > 0 && died > 0, "{counts}");
    println!("{count} rounds of seed {seed}: {counts}");
    world.end();
}

/// Rounds of each seed; so many others by the environment variable `FLASH_ROUNDS`.
fn count() -> u32 {
    std::env::var("FLASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25)
}

#[test]
fn a_card_is_never_in_an_unknown_state_whatever_dies() {
    rounds(1, count());
}

#[test]
fn nor_by_other_seeds() {
    rounds(2, count());
    rounds(3, count());
}
