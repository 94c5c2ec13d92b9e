//! A client's requests and their answers: one module per kind of object.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use card_driver::Error as DriverError;
use card_driver::engine::{Engine, EngineLimits};
use shim_abi::{Request, Response};

use crate::cards::{Card, Window, find};
use crate::clients::{Client, Stage};
use crate::cm::ConnectionManager;
use crate::error::Error;
use crate::events::Clients;
use crate::listeners::Listeners;
use crate::numbers::Numbers;
use crate::objects::Context;
use crate::poller::Poller;
use crate::undo::ClientObject;

mod address;
mod channel;
mod connection;
mod context;
mod device_memory;
mod multicast;
mod port;
pub(crate) mod qos;
mod queues;
mod region;
mod services;
mod srq;
mod window;
mod xrc;

pub use port::{changes_port, is_tools};

/// How often a number that the client has on another card is drawn again.
const REDRAWS: usize = 8;

/// A response and the descriptors that go with it.
#[derive(Debug)]
pub struct Answer {
    /// The response.
    pub response: Response,
    /// Descriptors, in the order that the response documents.
    pub fds: Vec<OwnedFd>,
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self { response, fds: Vec::new() }
    }
}

/// The progress of a request.
#[derive(Debug)]
pub enum Progress {
    /// It is done.
    Done(Answer),
    /// A part of it is: it is to be served again, when others have had their turn.
    More,
    /// It waits for work of another thread, and is served again behind that.
    Waits,
}

impl From<Response> for Progress {
    fn from(response: Response) -> Self {
        Self::Done(response.into())
    }
}

/// One request of one client, and the objects that it may act on.
pub struct Session<'a> {
    /// The cards.
    pub cards: &'a mut [Card],
    /// The client.
    pub client: &'a mut Client,
    /// The epoll set.
    pub poller: &'a Arc<Poller>,
    /// Blocks of numbers of protection domains; they mean the same on every card.
    pub pd_blocks: &'a mut Numbers,
    /// The other clients.
    pub others: &'a Clients,
    /// The connection manager.
    pub connections: &'a mut ConnectionManager,
}

impl Session<'_> {
    /// Executes the client's request, or a part of it for which others can wait.
    ///
    /// # Errors
    /// Why not; the client's objects are then as before.
    pub fn serve(&mut self, request: Request) -> Result<Progress, Error> {
        let is_tools = is_tools(&request);
        if self.client.stage == Stage::Tool && !is_tools && request != Request::ListCards {
            return Err(Error::Forbidden(
                "a tool may ask for the status, and tend ports and cards".into(),
            ));
        }
        if self.client.stage != Stage::Tool && is_tools {
            return Err(Error::Forbidden(
                "a verbs program tends no port and no card; `balboa` does".into(),
            ));
        }
        match request {
            Request::DeregMr { mr } => self.dereg_mr(mr),
            Request::ModifyQp { qpn, first, attributes } => {
                self.modify_qp(qpn, first.as_ref(), &attributes)
            }
            Request::ModifyTarget { target, attributes } => self.modify_target(target, &attributes),
            request => match self.serve_at_once(request) {
                // Addresses that rest are woken by turns.
                Err(Error::Driver(DriverError::NoAddressSpace { card, .. }))
                    if self.has_resting(card) =>
                {
                    Ok(Progress::More)
                }
                outcome => outcome.map(Progress::Done),
            },
        }
    }

    fn has_resting(&mut self, card: u32) -> bool {
        self.card(card).is_ok_and(|card| card.device.arena.has_resting())
    }

    fn serve_at_once(&mut self, request: Request) -> Result<Answer, Error> {
        match request {
            Request::ListCards => Ok(self.list_cards()),
            Request::SetLink { .. }
            | Request::AddGid { .. }
            | Request::DelGid { .. }
            | Request::Capture { .. }
            | Request::EndCapture { .. }
            | Request::AttachServices { .. }
            | Request::DetachServices { .. }
            | Request::LoadService { .. }
            | Request::UnloadService { .. }
            | Request::QueryQos { .. }
            | Request::SetQos { .. } => self.serve_tool(request),
            Request::OpenContext { card } => self.open_context(card),
            Request::CloseContext { context } => self.close_context(context),
            Request::QueryPort { context } => self.query_port(context),
            Request::QueryClock { context } => self.query_clock(context),
            Request::CreateChannel { context } => self.create_channel(context),
            Request::AllocPd { context } => self.alloc_pd(context),
            Request::DeallocPd { pdn } => self.dealloc_pd(pdn),
            Request::ReserveMr { pdn, address, length, hca_va, access } => {
                self.reserve_mr(region::WantedRegion { pdn, address, length, hca_va, access })
            }
            Request::CommitMr { mr } => self.commit_mr(mr),
            Request::AllocDm { .. }
            | Request::CopyDm { .. }
            | Request::RegDmMr { .. }
            | Request::FreeDm { .. } => self.serve_device_memory(request),
            Request::AllocNullMr { pdn } => self.alloc_null_mr(pdn),
            Request::AllocMw { pdn, type_2 } => self.alloc_mw(pdn, type_2),
            Request::DeallocMw { mw } => self.dealloc_mw(mw),
            Request::CreateAh { pdn, address } => self.create_ah(pdn, &address),
            Request::DestroyAh { ah } => self.destroy_ah(ah),
            Request::AttachMulticast { qpn, group } => self.attach_multicast(qpn, group),
            Request::DetachMulticast { qpn, group } => self.detach_multicast(qpn, group),
            Request::ModifyMr { mr, pdn, access } => self.modify_mr(mr, pdn, access),
            Request::MoveMr { mr, to } => self.move_mr(mr, to),
            Request::CreateCq { context, log2_entries, channel, vector, cookie } => {
                self.create_cq(queues::WantedCq { context, log2_entries, channel, vector, cookie })
            }
            Request::ResizeCq { cqn, log2_entries } => self.resize_cq(cqn, log2_entries),
            Request::ModerateCq { cqn, count, period } => self.moderate_cq(cqn, count, period),
            Request::ReleaseCqRing { cqn } => self.release_cq_ring(cqn),
            Request::DestroyCq { cqn } => self.destroy_cq(cqn),
            Request::CreateSrq { pdn, log2_entries, log2_stride, cookie } => {
                self.create_srq(srq::WantedSrq { pdn, log2_entries, log2_stride, cookie })
            }
            Request::OpenXrcd { .. }
            | Request::CloseXrcd { .. }
            | Request::CreateXrcSrq { .. }
            | Request::CreateTarget { .. }
            | Request::OpenTarget { .. }
            | Request::QueryTarget { .. }
            | Request::DestroyTarget { .. } => self.serve_xrc(request),
            Request::ModifySrq { srqn, limit } => self.modify_srq(srqn, limit),
            Request::QuerySrq { srqn } => self.query_srq(srqn),
            Request::DestroySrq { srqn } => self.destroy_srq(srqn),
            Request::CreateQp(wanted) => self.create_qp(&wanted),
            Request::QueryQp { qpn } => self.query_qp(qpn),
            Request::DestroyQp { qpn } => self.destroy_qp(qpn),
            Request::OpenCmChannel => self.open_cm_channel(),
            Request::CmCommand { channel, command, from } => {
                self.cm_command(channel, &command, from)
            }
            Request::DeregMr { .. }
            | Request::ModifyQp { .. }
            | Request::ModifyTarget { .. }
            | Request::ResetCard { .. }
            | Request::FlashOpen { .. }
            | Request::FlashWrite { .. }
            | Request::FlashApply { .. }
            | Request::FlashRollback { .. }
            | Request::FlashState { .. }
            | Request::FlashVerify { .. }
            | Request::Introduce
            | Request::Ping { .. }
            | Request::Status => Err(not_at_once()),
        }
    }

    fn list_cards(&mut self) -> Answer {
        let there = self.cards.iter_mut().filter(|card| card.is_there());
        Response::Cards(there.map(Card::info).collect()).into()
    }

    /// Makes an object of the client's: `make` takes its resources, notes each part in it, and gives its number. When
    /// that fails, the parts taken so far are given back.
    fn make<K: ClientObject>(
        &mut self,
        limits: &EngineLimits,
        mut thing: K,
        make: impl FnOnce(&mut Self, &mut K) -> Result<(u32, Answer), Error>,
    ) -> Result<Answer, Error> {
        self.client.usage.take_all(thing.card(), thing.takes(), limits)?;
        match make(self, &mut thing) {
            Ok((number, answer)) => {
                K::table(&mut self.client.owned).insert(number, thing);
                Ok(answer)
            }
            Err(error) => {
                self.client.undo(self.cards, thing);
                Err(error)
            }
        }
    }

    /// Makes an engine make a queue whose number no queue of the client's on another card has, notes the number, and
    /// returns it with the engine's further answer.
    fn draw<K: ClientObject, T>(
        &mut self,
        card: u32,
        noted: &mut Option<u32>,
        is_taken: fn(&Listeners, u32) -> bool,
        make: impl Fn(&mut dyn Engine) -> Result<(u32, T), DriverError>,
        destroy: fn(&mut dyn Engine, u32) -> Result<(), DriverError>,
    ) -> Result<(u32, T), Error> {
        for _ in 0..REDRAWS {
            let window = self.client.window(self.cards, card)?;
            let (number, more) = make(window.engine)?;
            // Not noted: undoing it would end another client's queue.
            if is_taken(&window.users.listeners, number) {
                return Err(given_twice(&window, K::NAME, number));
            }
            *noted = Some(number);
            if !K::table(&mut self.client.owned).contains_key(&number) {
                return Ok((number, more));
            }
            destroy(window.engine, number)?;
            *noted = None;
        }
        Err(no_number::<K>())
    }

    fn context(&self, context: u32) -> Result<&Context, Error> {
        found(self.client.owned.contexts.get(&context), context)
    }

    fn card(&mut self, card: u32) -> Result<&mut Card, Error> {
        find(self.cards, card)
    }

    /// The client's window of a card it has opened.
    fn window(&mut self, card: u32) -> Result<Window<'_>, Error> {
        self.client.window(self.cards, card)
    }

    /// The limits of the client's engine on a card; [`DriverError::Dead`] if the engine is dead.
    fn limits(&mut self, card: u32) -> Result<EngineLimits, Error> {
        let engine = &self.window(card)?.engine;
        match engine.death() {
            None => Ok(*engine.limits()),
            Some(why) => {
                let (engine, why) = (engine.name().to_owned(), why.to_owned());
                Err(DriverError::Dead { engine, why }.into())
            }
        }
    }
}

/// A thing of the client's, or the error that it has none of that number.
fn found<K: ClientObject>(thing: Option<&K>, number: u32) -> Result<&K, Error> {
    thing.ok_or(Error::NoSuch { object: K::NAME, number: u64::from(number) })
}

/// Refuses to end an object that others of the client's use: their kind, and their number.
fn check_unused<K: ClientObject>(number: u32, users: &[(&str, usize)]) -> Result<(), Error> {
    match users.iter().find(|(_, count)| *count > 0) {
        Some((what, count)) => {
            Err(Error::Busy { object: K::NAME, number, users: format!("{count} {what}") })
        }
        None => Ok(()),
    }
}

/// An engine that gives a number out that is in use cannot be believed.
fn given_twice(window: &Window<'_>, what: &str, number: u32) -> Error {
    let engine = window.engine.name();
    let why = format!("{engine} gave {what} {number:#x} out, which another client has");
    DriverError::Backend(why).into()
}

/// A request that is served elsewhere, or in parts.
fn not_at_once() -> Error {
    Error::Unsupported("this is not served at once".into())
}

fn no_number<K: ClientObject>() -> Error {
    Error::Quota { card: None, resource: K::NAME, used: 0, asked: 1, limit: 0 }
}
