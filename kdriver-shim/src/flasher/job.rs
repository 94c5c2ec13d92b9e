//! The flashing of a card: its programs leave it, it takes the image, and it comes up with that, or with the one
//! before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitstreams::{EngineKind, Manifest};
use card_driver::backend::Takes;
use card_driver::loading::{Loading, LoadingStep};
use shim_abi::FlashState;

use super::Flasher;
use crate::cards::{Card, find};
use crate::clients::Client;
use crate::error::Error;
use crate::images::record::{Deed, ImageName};
use crate::images::{self, AGAIN, Accepted};
use crate::surroundings::Surroundings;

/// How long programs that were told that the card is gone may keep it open; then they are ended.
const GRACE: Duration = Duration::from_secs(5);
/// The state of a card with an image on its way.
const FLASHING: &str = "an image is being loaded into it";
/// Why programs lose a card.
const WHY: &str = "an image is loaded into it";

/// An image on its way into a card.
pub(super) struct Job {
    pub(super) card: u32,
    name: ImageName,
    bytes: Arc<Vec<u8>>,
    manifest: Manifest,
    pub(super) phase: Phase,
    /// Whether the card works at a step, and is looked at again a moment later.
    pub(super) waits: bool,
}

pub(super) enum Phase {
    /// Programs that have it open are to leave it.
    Leaving { since: Instant },
    /// The card is taking it.
    Loading(Box<Loading>),
}

impl Job {
    /// Lets the image's memory go, which the card cannot reach any more or holds itself.
    fn let_go(self) {
        let Self { bytes, phase, .. } = self;
        match phase {
            Phase::Leaving { .. } => images::let_go(bytes),
            Phase::Loading(loading) => images::let_go((bytes, loading.into_memory())),
        }
    }
}

/// Whether a client has its place in a vFPGA, where one alone is meant.
fn is_of(client: &Client, card: u32, alone: Option<u8>) -> bool {
    alone.is_none_or(|vfpga| client.uses(card, vfpga))
}

/// Whether one vFPGA of a card can be given an image.
fn can_take_one(card: &mut Card, vfpga: u8) -> Result<(), Error> {
    let name = card.device.name();
    if let Some(why) = &card.unusable {
        return Err(Error::Invalid(format!("{name}: {why}: load an image of the whole card")));
    }
    card.device.takes_images_of_one()?;
    match card.window(vfpga) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::Invalid(format!(
            "balboad drives no engine in vFPGA {vfpga} of {name}; load an image of the whole card"
        ))),
    }
}

impl Flasher {
    /// Goes on with the card that is flashed.
    pub fn go_on(&mut self, around: &mut Surroundings<'_>) {
        let Some(mut job) = self.job.take() else { return };
        let number = job.card;
        let outcome = match &mut job.phase {
            _ if job.name.vfpga.is_some() && self.has_gone(around, number) => {
                let why = "the card was reset, or is wanted back by the kernel".into();
                Err((Error::Invalid(why), true))
            }
            Phase::Leaving { since } => {
                let since = *since;
                self.begin_loading(around, &mut job, since)
            }
            Phase::Loading(loading) => match loading.step(Instant::now()) {
                Ok(LoadingStep::Ended) => {
                    self.end_flash(around, &mut job);
                    return job.let_go();
                }
                Ok(step) => {
                    job.waits = step == LoadingStep::Waits;
                    Ok(())
                }
                Err(error) => Err((error.into(), loading.has_begun())),
            },
        };
        match outcome {
            Ok(()) => self.job = Some(job),
            Err((error, lost)) => {
                let why = error.to_string();
                match job.name.vfpga {
                    Some(vfpga) => self.settle_one(around, number, vfpga, &mut job.phase, &why),
                    None => self.settle(around, number, &why, lost),
                }
                job.let_go();
            }
        }
    }

    /// Whether no card is flashed.
    pub(super) fn check_no_other(&self) -> Result<(), Error> {
        match &self.job {
            None => Ok(()),
            Some(job) => Err(Error::Occupied(format!(
                "an image is being loaded into balboa{}; one card is flashed at a time",
                job.card
            ))),
        }
    }

    /// Begins to load an image, or lets it go.
    pub(super) fn flash_or_let_go(
        &mut self,
        around: &mut Surroundings<'_>,
        number: u32,
        deed: Deed,
        image: Accepted,
        force: bool,
    ) -> Result<(), Error> {
        let bytes = Arc::clone(&image.bytes);
        self.begin_flash(around, number, deed, image, force).inspect_err(|_| images::let_go(bytes))
    }

    /// Begins to load an image, once all that can be known before speaks for it.
    fn begin_flash(
        &mut self,
        around: &mut Surroundings<'_>,
        number: u32,
        deed: Deed,
        Accepted { name, manifest, bytes }: Accepted,
        force: bool,
    ) -> Result<(), Error> {
        let alone = name.vfpga;
        let has = |client: &&Client| client.has_open(number) && is_of(client, number, alone);
        let programs = around.clients.values().filter(has).map(Client::label).collect::<Vec<_>>();
        if !programs.is_empty() && !force {
            let what = alone.map(|vfpga| format!("vFPGA {vfpga} of ")).unwrap_or_default();
            return Err(Error::Occupied(format!(
                "{} programs have {what}balboa{number} open ({}); end them, or say --force-disconnect",
                programs.len(),
                programs.join(", ")
            )));
        }
        let card = find(around.cards, number)?;
        let takes = card.device.backend.takes();
        // A shell that is decoupled or half written may not answer, and its answers mean nothing.
        if takes == Takes::Bitstreams && card.check_up().is_ok() {
            card.device.takes_shells()?;
        }
        if let Some(vfpga) = alone {
            can_take_one(card, vfpga)?;
        }
        let (device, engine) = (&card.device, manifest.engine);
        if engine != device.manifest.engine && !device.options.peers.is_empty() {
            return Err(Error::Invalid(format!(
                "it changes the engine of balboa{number}, and the ends of tunnels are settled when balboad starts; start balboad without --tunnel and --tunnel-peers, load it, and start balboad with them again"
            )));
        }
        if card.follows_kernel && engine != EngineKind::Vqe {
            return Err(Error::Invalid(format!(
                "the kernel shows balboa{number}, and only a queue engine shares its port; start balboad without --shadow"
            )));
        }
        if card.device.identity.seals && engine == EngineKind::Stock {
            return Err(Error::Invalid(format!(
                "balboa{number} seals all that it sends, and the stack of the published image seals nothing; start balboad without --psp-peers for this card"
            )));
        }
        let location = card.device.identity.location.clone();
        let mut record = card.record.clone();
        let initial = match takes {
            Takes::SoftImages => images::initial(&card.device.manifest),
            Takes::Bitstreams => None,
        };
        record.begin(deed, name.clone());
        let kept = || -> std::io::Result<()> {
            // The one that it came with is made again where it is the one to go back to.
            let current = record.current.as_ref();
            if let (Some((initial, bytes)), Some(current)) = (initial, current) {
                if initial.sha256 == current.sha256 {
                    self.store.put(&initial.sha256, &bytes)?;
                }
            }
            self.store.save(&location, &record)
        };
        kept().map_err(|error| self.not_recorded(&error))?;
        let card = find(around.cards, number)?;
        card.record = record;
        self.flashed.remove(&number);
        match alone {
            None => {
                card.unusable = Some(FLASHING.into());
                if let Err(error) = around.take_from_programs(number, WHY) {
                    self.note_refusal(around, number, &error.to_string());
                    return Err(error);
                }
            }
            Some(vfpga) => around.take_window_from_programs(number, vfpga, WHY),
        }
        let phase = Phase::Leaving { since: Instant::now() };
        self.job = Some(Job { card: number, name, bytes, manifest, phase, waits: false });
        Ok(())
    }

    fn not_recorded(&self, error: &std::io::Error) -> Error {
        let why = format!("the record of a card's images cannot be written: {error}");
        Error::StateDir { dir: self.state_dir.clone(), why }
    }

    /// Whether a card was reset, or is to be let go: an image of one of its vFPGAs ends before.
    fn has_gone(&mut self, around: &mut Surroundings<'_>, number: u32) -> bool {
        find(around.cards, number).is_ok_and(|card| card.wanted_back || card.device.was_reset())
    }

    /// Begins to send, once the card has no user any more. An error says whether the old image may be lost.
    fn begin_loading(
        &mut self,
        around: &mut Surroundings<'_>,
        job: &mut Job,
        since: Instant,
    ) -> Result<(), (Error, bool)> {
        let number = job.card;
        job.waits = true;
        if around.connections.is_losing(number) {
            return Ok(());
        }
        let card = find(around.cards, number).map_err(|error| (error, false))?;
        let alone = job.name.vfpga;
        let is_unused = match alone {
            None => card.is_unused(),
            Some(vfpga) => match card.window(vfpga) {
                Ok(window) => window.users.are_none(),
                Err(error) => return Err((error, false)),
            },
        };
        if !is_unused {
            if since.elapsed() >= GRACE {
                let has = |client: &&Client| {
                    client.owned.places.contains_key(&number) && is_of(client, number, alone)
                };
                let left = around.clients.values().filter(has).map(|client| client.id);
                around.ends.extend(left);
            }
            return Ok(());
        }
        if let Some(vfpga) = alone {
            let begun = card.device.begin_loading_one(vfpga, Arc::clone(&job.bytes), self.pace);
            job.phase = Phase::Loading(Box::new(begun.map_err(|error| (error.into(), false))?));
            job.waits = false;
            card.forget_window(vfpga);
            return Ok(());
        }
        around.news.unhear(card);
        let pace = self.pace;
        let begun = card.begin_loading(Arc::clone(&job.bytes), pace);
        job.phase = Phase::Loading(Box::new(begun.map_err(|error| (error, false))?));
        job.waits = false;
        Ok(())
    }

    /// Brings the card up that has taken all of its image.
    fn end_flash(&mut self, around: &mut Surroundings<'_>, job: &mut Job) {
        let number = job.card;
        let Phase::Loading(loading) = &mut job.phase else { return };
        let Ok(card) = find(around.cards, number) else { return };
        if let Some(vfpga) = job.name.vfpga {
            return self.end_flash_of_one(around, number, vfpga, loading);
        }
        let seen = match card.finish_loading(loading, job.manifest.clone()) {
            Ok(seen) => seen,
            Err(error) => return self.settle(around, number, &error.to_string(), true),
        };
        let mut record = card.record.clone();
        record.succeed(images::now(), seen);
        let (location, name) = (card.device.identity.location.clone(), card.device.name());
        // Until it is written the record says that the image is unknown, and so does balboad.
        if let Err(error) = self.store.save(&location, &record) {
            let why = self.not_recorded(&error).to_string();
            return self.settle(around, number, &why, true);
        }
        self.examiner.tidy();
        let image = &job.name.name;
        match seen {
            true => log::warn!("{name}: has the image {image}, and was brought up with it"),
            false => log::warn!(
                "{name}: was given the image {image} and came up; whether it has taken it was not seen"
            ),
        }
        let Ok(card) = find(around.cards, number) else { return };
        (card.record, card.unusable) = (record, None);
        self.flashed.insert(number, if seen { FlashState::Done } else { FlashState::Unseen });
        around.hear_again(number);
        around.tell_ports();
    }

    /// Starts the engine of the vFPGA anew that has taken all of its image.
    fn end_flash_of_one(
        &mut self,
        around: &mut Surroundings<'_>,
        number: u32,
        vfpga: u8,
        loading: &mut Loading,
    ) {
        let Ok(card) = find(around.cards, number) else { return };
        let outcome = card.device.finish_loading_one(loading);
        card.reloading = None;
        if let Err(error) = outcome {
            return self.note_failure_of_one(around, number, vfpga, &error.to_string(), true);
        }
        card.has_started_anew(vfpga);
        let before = card.record.clone();
        card.record.succeed(images::now(), true);
        let (location, record) = (card.device.identity.location.clone(), card.record.clone());
        let name = card.device.name();
        if let Err(error) = self.store.save(&location, &record) {
            // The next balboad would take it for one of which nothing is known.
            let why = self.not_recorded(&error).to_string();
            if let Ok(card) = find(around.cards, number) {
                card.record = before;
            }
            return self.note_failure_of_one(around, number, vfpga, &why, true);
        }
        log::warn!("{name}: vFPGA {vfpga} has another image, and its engine was started anew");
        self.flashed.insert(number, FlashState::Done);
        let Ok(card) = find(around.cards, number) else { return };
        let mut windows = card.device.windows.iter();
        if card.gsi.is_none() && windows.any(|it| it.index == vfpga && it.offers_gsi()) {
            // It went with the image before.
            around.news.unhear(card);
            card.manage_connections();
            around.hear_again(number);
            around.tell_ports();
        }
    }

    /// Ends the failed image of one vFPGA: where the card was given nothing, its engine is started anew.
    fn settle_one(
        &mut self,
        around: &mut Surroundings<'_>,
        number: u32,
        vfpga: u8,
        phase: &mut Phase,
        why: &str,
    ) {
        let Ok(card) = find(around.cards, number) else { return };
        // One without an image has no engine that could be started.
        let empty = card.record.vfpgas.contains_key(&vfpga);
        // One that was reset has lost more than its engine, and one that leaves wants none.
        let gone = card.wanted_back || card.device.was_reset();
        let (begun, ended) = match phase {
            Phase::Leaving { .. } if empty || gone => (false, Ok(())),
            Phase::Leaving { .. } => (false, card.device.restart(vfpga)),
            Phase::Loading(loading) => (loading.has_begun(), card.device.let_image_go(loading)),
        };
        card.reloading = None;
        if card.wanted_back {
            card.device.abandon("the kernel wants the card back");
        }
        match ended {
            Ok(()) if !begun && !empty && !gone => card.has_started_anew(vfpga),
            Ok(()) => {}
            Err(error) => log::error!("{error}"),
        }
        self.note_failure_of_one(around, number, vfpga, why, begun);
        if gone {
            around.tend = true;
        }
    }

    /// Notes that a card has lost its image, while one vFPGA of it was given another.
    fn note_loss(&mut self, around: &mut Surroundings<'_>, number: u32, why: &str) {
        let Ok(card) = find(around.cards, number) else { return };
        let why = format!("{why}, and holds no image any more");
        card.record.fail(images::now(), &why, true);
        card.record.lose(why.clone());
        card.tell_need();
        if let Err(error) = around.take_from_programs(number, &why) {
            log::error!("{error}");
        }
        self.flashed.insert(number, FlashState::Failed(format!("{AGAIN}: {why}")));
        self.save_record(around, number);
        self.examiner.tidy();
        around.tell_ports();
    }

    /// Notes that one vFPGA was not flashed, and whether its former image is lost.
    fn note_failure_of_one(
        &mut self,
        around: &mut Surroundings<'_>,
        number: u32,
        vfpga: u8,
        why: &str,
        lost: bool,
    ) {
        let Ok(card) = find(around.cards, number) else { return };
        if card.device.has_lost_image() {
            // Its power went, say, and all else with it.
            return self.note_loss(around, number, why);
        }
        card.record.fail(images::now(), why, lost);
        if lost {
            // Without that engine it describes itself otherwise, with any whole image that it is given next.
            card.device.said = None;
            self.let_window_go(around, number, vfpga, why);
        }
        let Ok(card) = find(around.cards, number) else { return };
        let told = match lost {
            true => format!("vFPGA {vfpga}: {AGAIN}: {why}"),
            false => format!("vFPGA {vfpga}: {why}"),
        };
        log::error!("{}: was not flashed: {told}", card.device.name());
        self.flashed.insert(number, FlashState::Failed(told));
        self.save_record(around, number);
        self.examiner.tidy();
    }

    /// Gives up the engine in a vFPGA of unknown content, and queue pair 1 if it was there.
    fn let_window_go(&mut self, around: &mut Surroundings<'_>, number: u32, vfpga: u8, why: &str) {
        let Ok(card) = find(around.cards, number) else { return };
        let mut window = card.device.windows.iter_mut().find(|window| window.index == vfpga);
        if let Some(window) = window.as_mut().filter(|window| window.engine.death().is_none()) {
            window.engine.abandon(why);
        }
        if window.is_some_and(|window| window.offers_gsi()) && card.gsi.is_some() {
            around.news.unhear(card);
            card.gsi = None;
            log::error!(
                "{}: has no queue pair 1 any more, so rdma_cm connects nobody by it",
                card.device.name()
            );
            around.connections.lose_card(number);
            around.hear_again(number);
            around.tell_ports();
        }
    }

    /// Writes the record of a card's images.
    pub fn save_record(&mut self, around: &mut Surroundings<'_>, number: u32) {
        let Ok(card) = find(around.cards, number) else { return };
        let (location, record) = (card.device.identity.location.clone(), card.record.clone());
        if let Err(error) = self.store.save(&location, &record) {
            log::error!("{}", self.not_recorded(&error));
        }
    }

    /// Notes that a card does not let itself be taken from its programs. It was given nothing, and is as it is where that
    /// is asked for without an image.
    fn note_refusal(&mut self, around: &mut Surroundings<'_>, number: u32, why: &str) {
        let Ok(card) = find(around.cards, number) else { return };
        card.record.fail(images::now(), why, false);
        card.tell_need();
        log::error!("{}: was not flashed: {why}", card.device.name());
        self.save_record(around, number);
        self.flashed.insert(number, FlashState::Failed(why.to_owned()));
    }

    /// Notes that a card was not flashed, and whether it has its old image still.
    fn settle(&mut self, around: &mut Surroundings<'_>, number: u32, why: &str, lost: bool) {
        let Ok(card) = find(around.cards, number) else { return };
        let name = card.device.name();
        let mut lost = lost;
        if !lost {
            if let Err(error) = card.keep_image() {
                log::error!("{name}: does not come up with the image that it had: {error}");
                // A failure of another kind does not mean that the card has no image.
                lost = card.failure.is_none();
            }
        }
        card.record.fail(images::now(), why, lost);
        card.tell_need();
        if lost {
            card.let_engines_go();
        }
        log::error!(
            "{name}: was not flashed: {why}{}",
            if lost { "; it needs to be flashed again" } else { "" }
        );
        self.save_record(around, number);
        self.examiner.tidy();
        let told = match lost {
            true => format!("{AGAIN}: {why}"),
            false => why.to_owned(),
        };
        self.flashed.insert(number, FlashState::Failed(told));
        around.hear_again(number);
        around.tell_ports();
    }
}
