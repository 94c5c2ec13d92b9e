//! Images that a tool has loaded into cards: by turns, so that others are served meanwhile.
//!
//! The tool brings the whole image first, and nothing happens to the card. Then it asks for it to be loaded, or for the
//! one before: the image is examined aside ([`crate::images::examiner`]), and where the tool goes away meanwhile that was all.
//! Once it is loaded, which is the answer, it is balboad's work, whether the tool lives or not, and asked about.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitstreams::digest::Sha256;
use bitstreams::{EngineKind, Manifest};
use card_driver::backend::Takes;
use card_driver::loading::{Loading, Step};
use shim_abi::{FlashState, MAX_IMAGE, MAX_MANIFEST, Request, Response};

use super::{Server, unwatch, watch};
use crate::cards::{Card, find};
use crate::clients::{Client, Stage};
use crate::error::Error;
use crate::events;
use crate::images::examiner::{Brought, Found, Target, Task};
use crate::images::record::{Deed, ImageName};
use crate::images::{self, AGAIN, Accepted};
use crate::process::ClientId;
use crate::session::Progress;

/// How long programs that were told that the card is gone may keep it open; then they are ended.
const GRACE: Duration = Duration::from_secs(5);
/// How long an image may be on its way here without a piece of it, before another's may take its place.
pub(super) const UPLOAD_PATIENCE: Duration = Duration::from_secs(30);
/// How often a card is looked at that is at a chunk.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// What is told of a card that has an image on its way.
const FLASHING: &str = "an image is being loaded into it";
/// Why programs lose a card.
const WHY: &str = "an image is loaded into it";

/// An image as a tool brings it, piece by piece.
pub(super) struct Upload {
    client: ClientId,
    card: u32,
    length: u64,
    brought: Brought,
    /// When the last piece came.
    pub(super) last: Instant,
}

/// An image on its way into a card.
pub(super) struct Job {
    card: u32,
    name: ImageName,
    bytes: Arc<Vec<u8>>,
    manifest: Manifest,
    phase: Phase,
    /// The card is at something, and is looked at again a moment later.
    waits: bool,
}

enum Phase {
    /// Programs that have it open are to leave it.
    Leaving { since: Instant },
    /// The card is taking it.
    Loading(Box<Loading>),
}

impl Job {
    /// Lets go what it was sent from, which the card cannot reach any more or holds itself.
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

/// Whether a request is one of those served here.
pub(super) fn is_flash(request: &Request) -> bool {
    matches!(
        request,
        Request::FlashOpen { .. }
            | Request::FlashWrite { .. }
            | Request::FlashApply { .. }
            | Request::FlashRollback { .. }
            | Request::FlashState { .. }
            | Request::FlashVerify { .. }
    )
}

impl Server {
    /// Serves a tool's request about images, with what was found of the one that it is about, once that was examined.
    pub(super) fn flash(
        &mut self,
        client: &Client,
        request: Request,
        found: Option<Found>,
    ) -> Result<Progress, Error> {
        if client.stage != Stage::Tool {
            return Err(Error::Forbidden("a verbs program flashes no card; `balboa` does".into()));
        }
        match request {
            Request::FlashOpen { card, length, sha256, name, manifest } => {
                let sha256 = Sha256(sha256);
                self.open_upload(client.id, card, (length, sha256), (name, manifest))?;
            }
            Request::FlashWrite { bytes } => self.go_on_uploading(client.id, &bytes)?,
            Request::FlashApply { force } => {
                let Some(Found::Image(card, image)) = found else {
                    return self.examine_upload(client.id);
                };
                self.flash_or_let_go(card, Deed::Flash, image?, force)?;
                log::warn!(client = client.process.pid; "balboa{card}: is flashed, as process {} asks for", client.process.pid);
            }
            Request::FlashRollback { card, force } => {
                let Some(Found::Image(card, image)) = found else {
                    return self.examine_previous(client.id, card);
                };
                self.flash_or_let_go(card, Deed::Rollback, image?, force)?;
                log::warn!(client = client.process.pid; "balboa{card}: is rolled back, as process {} asks for", client.process.pid);
            }
            Request::FlashVerify { card } => return self.verify_image(client.id, card, found),
            Request::FlashState { card } => return Ok(self.flash_state(card)?.into()),
            _ => return Err(Error::Unsupported("this is not served here".into())),
        }
        Ok(Response::Done.into())
    }

    fn open_upload(
        &mut self,
        client: ClientId,
        card: u32,
        (length, sha256): (u64, Sha256),
        (name, manifest): (String, String),
    ) -> Result<(), Error> {
        find(&mut self.cards, card)?;
        if manifest.len() > MAX_MANIFEST {
            return Err(Error::Invalid(format!(
                "a manifest has {MAX_MANIFEST} bytes at most, not {}",
                manifest.len()
            )));
        }
        if length == 0 || length > MAX_IMAGE {
            return Err(Error::Invalid(format!(
                "an image has 1 to {MAX_IMAGE} bytes, not {length}"
            )));
        }
        self.forget_upload(client);
        let now = Instant::now();
        if let Some(other) = &self.upload {
            if !self.is_left(other, now) {
                return Err(Error::Occupied(
                    "another image is being brought; wait for that".into(),
                ));
            }
            let other = other.client;
            log::warn!("an image that a tool has left half brought gives its place to another");
            self.forget_upload(other);
        }
        let brought = Brought { name, manifest, sha256, bytes: Vec::new() };
        self.upload = Some(Upload { client, card, length, brought, last: now });
        Ok(())
    }

    /// Whether the tool that brings an image has said nothing for long, and waits for nothing.
    fn is_left(&self, upload: &Upload, now: Instant) -> bool {
        let waits = self.clients.get(&upload.client).is_some_and(|it| it.put_off.is_some());
        !waits && now.saturating_duration_since(upload.last) >= UPLOAD_PATIENCE
    }

    /// Lets go what a client has brought, if it has.
    pub(super) fn forget_upload(&mut self, client: ClientId) {
        if let Some(upload) = self.upload.take_if(|upload| upload.client == client) {
            images::let_go(upload.brought);
        }
    }

    fn go_on_uploading(&mut self, client: ClientId, bytes: &[u8]) -> Result<(), Error> {
        let upload = self.upload.as_mut().filter(|upload| upload.client == client);
        let upload = upload.ok_or_else(|| Error::Invalid("no image was announced".into()))?;
        let there = (upload.brought.bytes.len() as u64).saturating_add(bytes.len() as u64);
        if there > upload.length {
            let length = upload.length;
            self.forget_upload(client);
            return Err(Error::Invalid(format!("{there} bytes came of an image of {length}")));
        }
        upload.brought.bytes.extend_from_slice(bytes);
        upload.last = Instant::now();
        Ok(())
    }

    /// Has examined what a client has brought, if it is all that was announced.
    fn examine_upload(&mut self, client: ClientId) -> Result<Progress, Error> {
        let upload = self.upload.take_if(|upload| upload.client == client);
        let upload = upload.ok_or_else(|| Error::Invalid("no image was brought".into()))?;
        let (there, length) = (upload.brought.bytes.len() as u64, upload.length);
        let whole = match there == length {
            true => self.check_no_other(),
            false => Err(Error::Invalid(format!("{there} bytes came of an image of {length}"))),
        };
        if let Err(error) = whole {
            images::let_go(upload.brought);
            return Err(error);
        }
        if self.examiner.is_busy() {
            self.upload = Some(upload);
            self.examiner.wait(client);
            return Ok(Progress::Waits);
        }
        let target = target(find(&mut self.cards, upload.card)?);
        self.examine(client, Task::Check(target, upload.brought))
    }

    /// Has the image examined that a card had before.
    fn examine_previous(&mut self, client: ClientId, number: u32) -> Result<Progress, Error> {
        let card = find(&mut self.cards, number)?;
        let name = card.record.previous.clone().ok_or_else(|| {
            Error::Invalid(format!("balboa{number} had no other image that could be put back"))
        })?;
        let target = target(card);
        self.check_no_other()?;
        self.examine(client, Task::Read(target, name))
    }

    fn examine(&mut self, client: ClientId, task: Task) -> Result<Progress, Error> {
        match self.examiner.is_busy() {
            true => self.examiner.wait(client),
            false => self.examiner.begin(client, task)?,
        }
        Ok(Progress::Waits)
    }

    /// Answers whoever asked for what was examined, and lets others have it examined that have waited.
    pub(super) fn hear_examiner(&mut self) {
        let Some((client, found)) = self.examiner.ended() else { return };
        let is_image = matches!(found, Found::Image(..));
        let asker = client.and_then(|client| self.clients.get_mut(&client));
        if let Some((client, put_off)) = asker.and_then(|it| Some((it.id, it.put_off.as_mut()?))) {
            put_off.found = Some(found);
            self.go_on_serving(client);
        } else {
            images::let_go(found);
        }
        if is_image && self.flash.is_none() {
            // It was refused, or nobody wants it any more.
            self.examiner.tidy();
        }
        self.examiner.go_on();
        self.have_next_examined();
    }

    /// Whether the one that waits for the examiner can have it.
    pub(super) fn has_to_examine(&self) -> bool {
        !self.examiner.is_busy() && self.examiner.awaited() > 0
    }

    /// Serves the one that has waited longest for the examiner, if that is free: the next one, too, has its turn where this
    /// one does not need it any more.
    pub(super) fn have_next_examined(&mut self) {
        if let Some(next) = self.examiner.next_client() {
            self.go_on_serving(next);
        }
    }

    /// Whether no card is flashed.
    fn check_no_other(&self) -> Result<(), Error> {
        match &self.flash {
            None => Ok(()),
            Some(job) => Err(Error::Occupied(format!(
                "an image is being loaded into balboa{}; one card is flashed at a time",
                job.card
            ))),
        }
    }

    /// Begins to load an image, or lets it go.
    fn flash_or_let_go(
        &mut self,
        number: u32,
        deed: Deed,
        image: Accepted,
        force: bool,
    ) -> Result<(), Error> {
        let bytes = Arc::clone(&image.bytes);
        self.begin_flash(number, deed, image, force).inspect_err(|_| images::let_go(bytes))
    }

    /// Begins to load an image, once all that can be known before speaks for it.
    fn begin_flash(
        &mut self,
        number: u32,
        deed: Deed,
        Accepted { name, manifest, bytes }: Accepted,
        force: bool,
    ) -> Result<(), Error> {
        let alone = name.vfpga;
        let has = |client: &&Client| client.has_open(number) && is_of(client, number, alone);
        let programs = self.clients.values().filter(has).map(Client::label).collect::<Vec<_>>();
        if !programs.is_empty() && !force {
            let what = alone.map(|vfpga| format!("vFPGA {vfpga} of ")).unwrap_or_default();
            return Err(Error::Occupied(format!(
                "{} programs have {what}balboa{number} open ({}); end them, or say --force-disconnect",
                programs.len(),
                programs.join(", ")
            )));
        }
        let card = find(&mut self.cards, number)?;
        let takes = card.device.backend.takes();
        // A shell that is decoupled or half written may not answer, nor is what it says anything.
        if takes == Takes::Bitstreams && card.check_up().is_ok() {
            card.device.takes_shells()?;
        }
        if let Some(vfpga) = alone {
            can_take_one(card, vfpga)?;
        }
        let (device, engine) = (&card.device, manifest.engine);
        if engine != device.manifest.engine && !device.options.peers.is_empty() {
            return Err(Error::Invalid(format!(
                "it changes the engine of balboa{number}, and who the ends of tunnels are is settled when balboad starts; start balboad without --tunnel and --tunnel-peers, load it, and start balboad with them again"
            )));
        }
        if card.follows_kernel && engine != EngineKind::Vqe {
            return Err(Error::Invalid(format!(
                "the kernel shows balboa{number}, and only a queue engine shares its port; start balboad without --shadow"
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
        let card = find(&mut self.cards, number)?;
        card.record = record;
        self.flashed.remove(&number);
        match alone {
            None => {
                card.unusable = Some(FLASHING.into());
                if let Err(error) = self.take_from_programs(number, WHY) {
                    self.note_refusal(number, &error.to_string());
                    return Err(error);
                }
            }
            Some(vfpga) => self.take_window_from_programs(number, vfpga),
        }
        let phase = Phase::Leaving { since: Instant::now() };
        self.flash = Some(Job { card: number, name, bytes, manifest, phase, waits: false });
        Ok(())
    }

    /// Tells the programs of one vFPGA that their device is gone. Those that have closed it give their places back.
    fn take_window_from_programs(&mut self, number: u32, vfpga: u8) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        card.reloading = Some(vfpga);
        if let Ok(window) = card.window(vfpga) {
            window.engine.abandon(WHY);
        }
        events::dispatch(&mut self.cards, &self.clients);
        let Ok(card) = find(&mut self.cards, number) else { return };
        for client in self.clients.values_mut().filter(|it| it.stage != Stage::Ending) {
            if client.uses(number, vfpga) && !client.has_open(number) {
                while !client.leave(card) {}
            }
        }
    }

    fn not_recorded(&self, error: &std::io::Error) -> Error {
        let why = format!("the record of a card's images cannot be written: {error}");
        Error::StateDir { dir: self.state_dir.clone(), why }
    }

    /// How long there is nothing to do for a card that is flashed.
    pub(super) fn flash_patience(&self) -> Option<Duration> {
        self.flash.as_ref().map(|job| if job.waits { LOOK_AGAIN } else { Duration::ZERO })
    }

    /// Whether a card that is flashed is not waited for.
    pub(super) fn has_flash_to_do(&self) -> bool {
        self.flash.as_ref().is_some_and(|job| !job.waits)
    }

    /// Goes on with the card that is flashed.
    pub(super) fn go_on_flashing(&mut self) {
        let Some(mut job) = self.flash.take() else { return };
        let number = job.card;
        let outcome = match &mut job.phase {
            _ if job.name.vfpga.is_some() && self.has_gone(number) => {
                let why = "the card was reset, or is wanted back by the kernel".into();
                Err((Error::Invalid(why), true))
            }
            Phase::Leaving { since } => {
                let since = *since;
                self.begin_loading(&mut job, since)
            }
            Phase::Loading(loading) => match loading.step(Instant::now()) {
                Ok(Step::Ended) => {
                    self.end_flash(&mut job);
                    return job.let_go();
                }
                Ok(step) => {
                    job.waits = step == Step::Waits;
                    Ok(())
                }
                Err(error) => Err((error.into(), loading.has_begun())),
            },
        };
        match outcome {
            Ok(()) => self.flash = Some(job),
            Err((error, lost)) => {
                let why = error.to_string();
                match job.name.vfpga {
                    Some(vfpga) => self.settle_one(number, vfpga, &mut job.phase, &why),
                    None => self.settle(number, &why, lost),
                }
                job.let_go();
            }
        }
    }

    /// Whether a card was reset, or is to be let go: what is begun with one of its vFPGAs ends before.
    fn has_gone(&mut self, number: u32) -> bool {
        find(&mut self.cards, number).is_ok_and(|card| card.wanted_back || card.device.was_reset())
    }

    /// Begins to send, once nobody uses the card any more. An error says whether the old image may be lost.
    fn begin_loading(&mut self, job: &mut Job, since: Instant) -> Result<(), (Error, bool)> {
        let number = job.card;
        job.waits = true;
        if self.connections.is_losing(number) {
            return Ok(());
        }
        let card = find(&mut self.cards, number).map_err(|error| (error, false))?;
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
                let left = self.clients.values().filter(has).map(|client| client.id);
                for id in left.collect::<Vec<_>>() {
                    self.end(id, "an image is loaded into a card that it keeps open");
                }
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
        unwatch(&self.poller, card, &mut self.watches);
        let pace = self.pace;
        let begun = card.begin_loading(Arc::clone(&job.bytes), pace);
        job.phase = Phase::Loading(Box::new(begun.map_err(|error| (error, false))?));
        job.waits = false;
        Ok(())
    }

    /// Brings the card up that has taken all of its image.
    fn end_flash(&mut self, job: &mut Job) {
        let number = job.card;
        let Phase::Loading(loading) = &mut job.phase else { return };
        let Ok(card) = find(&mut self.cards, number) else { return };
        if let Some(vfpga) = job.name.vfpga {
            return self.end_flash_of_one(number, vfpga, loading);
        }
        let seen = match card.finish_loading(loading, job.manifest.clone()) {
            Ok(seen) => seen,
            Err(error) => return self.settle(number, &error.to_string(), true),
        };
        let mut record = card.record.clone();
        record.succeed(images::now(), seen);
        let (location, name) = (card.device.identity.location.clone(), card.device.name());
        // Until it is written the record says that the image is unknown, and so does balboad.
        if let Err(error) = self.store.save(&location, &record) {
            let why = self.not_recorded(&error).to_string();
            return self.settle(number, &why, true);
        }
        self.examiner.tidy();
        let image = &job.name.name;
        match seen {
            true => log::warn!("{name}: has the image {image}, and was brought up with it"),
            false => log::warn!(
                "{name}: was given the image {image} and came up; whether it has taken it was not seen"
            ),
        }
        let Ok(card) = find(&mut self.cards, number) else { return };
        (card.record, card.unusable) = (record, None);
        self.flashed.insert(number, if seen { FlashState::Done } else { FlashState::Unseen });
        self.watch_again(number);
        self.tell_ports();
    }

    /// Starts the engine of the vFPGA anew that has taken all of its image.
    fn end_flash_of_one(&mut self, number: u32, vfpga: u8, loading: &mut Loading) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        let outcome = card.device.finish_loading_one(loading);
        card.reloading = None;
        if let Err(error) = outcome {
            return self.note_failure_of_one(number, vfpga, &error.to_string(), true);
        }
        card.has_started_anew(vfpga);
        let before = card.record.clone();
        card.record.succeed(images::now(), true);
        let (location, record) = (card.device.identity.location.clone(), card.record.clone());
        let name = card.device.name();
        if let Err(error) = self.store.save(&location, &record) {
            // The next balboad would take it for one of which nothing is known.
            let why = self.not_recorded(&error).to_string();
            if let Ok(card) = find(&mut self.cards, number) {
                card.record = before;
            }
            return self.note_failure_of_one(number, vfpga, &why, true);
        }
        log::warn!("{name}: vFPGA {vfpga} has another image, and its engine was started anew");
        self.flashed.insert(number, FlashState::Done);
        let Ok(card) = find(&mut self.cards, number) else { return };
        let mut windows = card.device.windows.iter();
        if card.gsi.is_none() && windows.any(|it| it.index == vfpga && it.offers_gsi()) {
            // It went with what was there before.
            unwatch(&self.poller, card, &mut self.watches);
            card.manage_connections();
            self.watch_again(number);
            self.tell_ports();
        }
    }

    /// Ends what was begun with one vFPGA and has failed: where the card was given nothing, its engine is started anew.
    fn settle_one(&mut self, number: u32, vfpga: u8, phase: &mut Phase, why: &str) {
        let Ok(card) = find(&mut self.cards, number) else { return };
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
        self.note_failure_of_one(number, vfpga, why, begun);
        if gone {
            self.tend_cards();
        }
    }

    /// Notes that a card has lost its image, while one vFPGA of it was given another.
    fn note_loss(&mut self, number: u32, why: &str) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        let why = format!("{why}, and holds no image any more");
        card.record.fail(images::now(), &why, true);
        card.record.lose(why.clone());
        card.tell_need();
        if let Err(error) = self.take_from_programs(number, &why) {
            log::error!("{error}");
        }
        self.flashed.insert(number, FlashState::Failed(format!("{AGAIN}: {why}")));
        self.save_record(number);
        self.examiner.tidy();
        self.tell_ports();
    }

    /// Notes that one vFPGA was not flashed, and whether what it had went with it.
    fn note_failure_of_one(&mut self, number: u32, vfpga: u8, why: &str, lost: bool) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        if card.device.has_lost_image() {
            // Its power went, say, and all else with it.
            return self.note_loss(number, why);
        }
        card.record.fail(images::now(), why, lost);
        if lost {
            // Without that engine it says something else, whatever whole image it is given next.
            card.device.said = None;
            self.let_window_go(number, vfpga, why);
        }
        let Ok(card) = find(&mut self.cards, number) else { return };
        let told = match lost {
            true => format!("vFPGA {vfpga}: {AGAIN}: {why}"),
            false => format!("vFPGA {vfpga}: {why}"),
        };
        log::error!("{}: was not flashed: {told}", card.device.name());
        self.flashed.insert(number, FlashState::Failed(told));
        self.save_record(number);
        self.examiner.tidy();
    }

    /// Has no engine in a vFPGA any more of which it is not known what it has, nor queue pair 1 if it was there.
    fn let_window_go(&mut self, number: u32, vfpga: u8, why: &str) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        let mut window = card.device.windows.iter_mut().find(|window| window.index == vfpga);
        if let Some(window) = window.as_mut().filter(|window| window.engine.death().is_none()) {
            window.engine.abandon(why);
        }
        if window.is_some_and(|window| window.offers_gsi()) && card.gsi.is_some() {
            unwatch(&self.poller, card, &mut self.watches);
            card.gsi = None;
            log::error!(
                "{}: has no queue pair 1 any more, so rdma_cm connects nobody by it",
                card.device.name()
            );
            self.connections.lose_card(number);
            self.watch_again(number);
            self.tell_ports();
        }
    }

    /// Writes down what is known of a card's images.
    pub(super) fn save_record(&mut self, number: u32) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        let (location, record) = (card.device.identity.location.clone(), card.record.clone());
        if let Err(error) = self.store.save(&location, &record) {
            log::error!("{}", self.not_recorded(&error));
        }
    }

    /// Notes that a card does not let itself be taken from its programs. It was given nothing, and is as it is where that
    /// is asked for without an image.
    fn note_refusal(&mut self, number: u32, why: &str) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        card.record.fail(images::now(), why, false);
        card.tell_need();
        log::error!("{}: was not flashed: {why}", card.device.name());
        self.save_record(number);
        self.flashed.insert(number, FlashState::Failed(why.to_owned()));
    }

    /// Notes that a card was not flashed, and whether it has its old image still.
    fn settle(&mut self, number: u32, why: &str, lost: bool) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        let name = card.device.name();
        let mut lost = lost;
        if !lost {
            if let Err(error) = card.keep_image() {
                log::error!("{name}: does not come up with the image that it had: {error}");
                // What keeps it from that alone is no reason to take it for one without an image.
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
        self.save_record(number);
        self.examiner.tidy();
        let told = match lost {
            true => format!("{AGAIN}: {why}"),
            false => why.to_owned(),
        };
        self.flashed.insert(number, FlashState::Failed(told));
        self.watch_again(number);
        self.tell_ports();
    }

    /// Hears a card again whose engines are others now.
    fn watch_again(&mut self, number: u32) {
        let Ok(card) = find(&mut self.cards, number) else { return };
        match watch(&self.poller, card) {
            Ok(watches) => drop(self.watches.insert(number, watches)),
            Err(error) => log::error!("{}: is not heard any more: {error}", card.device.name()),
        }
    }

    fn flash_state(&mut self, number: u32) -> Result<Response, Error> {
        find(&mut self.cards, number)?;
        let state = match self.flash.as_ref().filter(|job| job.card == number) {
            Some(Job { phase: Phase::Leaving { .. }, .. }) => FlashState::Leaving,
            Some(Job { phase: Phase::Loading(loading), .. }) => {
                let (done, total) = loading.progress();
                FlashState::Loading { done, total }
            }
            None => self.flashed.get(&number).cloned().unwrap_or(FlashState::Idle),
        };
        Ok(Response::Flash(state))
    }

    /// Asks a card whether it is what its record says.
    fn verify_image(
        &mut self,
        client: ClientId,
        number: u32,
        found: Option<Found>,
    ) -> Result<Progress, Error> {
        let card = find(&mut self.cards, number)?;
        if let Some(why) = card.unusable.as_ref().or(card.failure.as_ref()) {
            return Err(Error::Invalid(format!("balboa{number}: {why}")));
        }
        if let Some((vfpga, why)) = card.record.vfpgas.first_key_value() {
            return Err(Error::Invalid(format!("balboa{number}: vFPGA {vfpga}: {AGAIN}: {why}")));
        }
        card.device.check_image()?;
        if card.record.current.is_none() {
            // Of a card that came with its bitstream no more is known than what its manifest says.
            return Ok(Response::Done.into());
        }
        let logic = card.record.current.as_ref().map_or(0, |image| image.logic.len());
        let regions = card.device.manifest.regions.map(usize::from);
        if regions != Some(logic) {
            return Err(Error::Invalid(format!(
                "balboa{number} has {regions:?} vFPGAs, and {logic} by its record"
            )));
        }
        let takes = card.device.backend.takes();
        if takes == Takes::SoftImages && !card.record.history.is_empty() {
            let sha256 = card.record.current.as_ref().map(|image| image.sha256.clone());
            let sha256 = sha256.unwrap_or_default();
            match found {
                Some(Found::Kept(of, kept)) if of == sha256 => kept
                    .map_err(|why| Error::Invalid(format!("the image of balboa{number}: {why}")))?,
                // Another one has come meanwhile, or none was looked at yet.
                _ => return self.examine(client, Task::Verify(sha256)),
            }
        }
        Ok(Response::Done.into())
    }
}

/// A card for which an image is examined.
fn target(card: &Card) -> Target {
    let (takes, like) = (card.device.backend.takes(), card.device.manifest.clone());
    Target { card: card.device.number, takes, like }
}
