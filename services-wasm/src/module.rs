//! A module that is a service.

use std::fmt;

use services::{About, Budget, Halt, Operation, PacketService, Part, Placing, Verdict};
use wasmi::WasmResults;

use crate::code::{Code, Failure, Fresh};
use crate::description;
use crate::error::{Error, short};
use crate::interface::{self, room, verdict};
use crate::limit;

/// A module that is a service: translated, and without any instance.
pub struct Module {
    code: Code,
    about: About,
    /// The address of the room, which lies in its memory.
    room: usize,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The code would be thousands of lines.
        f.debug_struct("Module").field("about", &self.about).finish_non_exhaustive()
    }
}

/// A packet at a stage, and the state of its connection there.
struct Packet<'a> {
    part: &'a Part,
    payload: &'a [u8],
    state: &'a [u8],
    address: Option<u64>,
}

/// The room behind a call.
struct Room<'a>(&'a [u8]);

impl Module {
    /// Makes a service of a file, which may have any content.
    ///
    /// # Errors
    /// Why it is none.
    pub fn load(bytes: &[u8]) -> Result<Self, Error> {
        let code = Code::of(bytes)?;
        let stages = code.stages()?;
        let (_, version) = ask(&code, interface::INTERFACE)?;
        if version != interface::VERSION {
            return Err(Error::Version(version));
        }
        let (fresh, address) = ask(&code, interface::ABOUT)?;
        let described = place(&fresh, address, interface::description::BYTES);
        let (described, _) = described.ok_or(Error::Place(interface::ABOUT))?;
        let about = description::read(described, stages)?;
        let (fresh, address) = ask(&code, interface::ROOM)?;
        let room = place(&fresh, address, room::BYTES).ok_or(Error::Place(interface::ROOM))?.1;
        Ok(Self { code, about, room })
    }

    /// Calls the function of a stage in a new instance, at the budget's cost, and gives that with the function's answer.
    fn call<R: WasmResults>(
        &self,
        function: &'static str,
        packet: &Packet<'_>,
        budget: &mut Budget,
    ) -> Result<(Fresh, R), Halt> {
        let mut fresh = self.instance(packet, budget.left())?;
        let (used, outcome) = fresh.call(function);
        let units = used.div_ceil(limit::FUEL_FOR_UNIT);
        let spent = budget.spend(u32::try_from(units).unwrap_or(u32::MAX));
        let answer = outcome.map_err(halt)?;
        spent?;
        Ok((fresh, answer))
    }

    /// Why the function of a stage does what no service may on a packet, for people; `None` where it does not. Each call
    /// is of a new instance, so it does the same as it did before.
    #[must_use]
    pub fn why(
        &self,
        stage: &'static str,
        part: &Part,
        placing: &Placing<'_>,
        state: &[u8],
    ) -> Option<String> {
        let packet = Packet { part, payload: placing.bytes, state, address: placing.address };
        let mut fresh = self.instance(&packet, self.about.work).ok()?;
        let outcome = match stage {
            interface::CHECK => fresh.call(stage).1.map(Some),
            _ => fresh.call(stage).1.map(|()| None),
        };
        match outcome {
            Err(Failure::Fault(why)) => Some(short(why)),
            Ok(Some(verdict)) if !verdict::ALL.contains(&verdict) => {
                Some(format!("{stage} gave the verdict {verdict}, and there are 0, 1 and 2"))
            }
            Ok(_) | Err(Failure::OutOfFuel) => None,
        }
    }

    /// A new instance that has a packet in its room, and fuel for so many units of work.
    fn instance(&self, packet: &Packet<'_>, units: u32) -> Result<Fresh, Halt> {
        let fuel = u64::from(units).saturating_mul(limit::FUEL_FOR_UNIT);
        let mut fresh = self.code.instance(fuel).map_err(halt)?;
        let memory = fresh.memory.data_mut(&mut fresh.store);
        memory.get_mut(self.room..).and_then(|room| packet.put(room)).ok_or(Halt::Fault)?;
        Ok(fresh)
    }

    /// The room as a call has left it.
    fn room<'a>(&self, fresh: &'a Fresh) -> Result<Room<'a>, Halt> {
        let memory = fresh.memory.data(&fresh.store);
        memory.get(self.room..).map(Room).ok_or(Halt::Fault)
    }
}

fn halt(failure: Failure) -> Halt {
    match failure {
        Failure::OutOfFuel => Halt::Exhausted,
        Failure::Fault(_) => Halt::Fault,
    }
}

/// Calls a function by which a module tells of itself.
fn ask(code: &Code, function: &'static str) -> Result<(Fresh, i32), Error> {
    let silent = |failure| {
        let why = match failure {
            Failure::OutOfFuel => {
                format!("it takes more than {} instructions", limit::FUEL_TO_LOAD)
            }
            Failure::Fault(why) => short(why),
        };
        Error::Silent { function, why }
    };
    let mut fresh = code.instance(limit::FUEL_TO_LOAD).map_err(silent)?;
    let answer = fresh.call(function).1.map_err(silent)?;
    Ok((fresh, answer))
}

/// So many bytes at an address in memory, and the address.
fn place(fresh: &Fresh, address: i32, bytes: usize) -> Option<(&[u8], usize)> {
    // Addresses of a module are not negative; its language's numbers may be.
    let address = usize::try_from(address as u32).ok()?;
    let end = address.checked_add(bytes)?;
    Some((fresh.memory.data(&fresh.store).get(address..end)?, address))
}

fn put(room: &mut [u8], place: usize, bytes: &[u8]) -> Option<()> {
    let end = place.checked_add(bytes.len())?;
    room.get_mut(place..end)?.copy_from_slice(bytes);
    Some(())
}

impl Packet<'_> {
    /// Puts the packet into a room; `None` where it is too long.
    fn put(&self, room: &mut [u8]) -> Option<()> {
        if self.payload.len() > room::LONGEST {
            return None;
        }
        let operation = match self.part.operation {
            Operation::Send => 0u32,
            Operation::Write => 1,
            Operation::Read => 2,
        };
        let set = |is: bool, bit: u32| if is { bit } else { 0 };
        let flags = set(self.part.is_first(), room::FIRST)
            | set(self.part.is_last, room::LAST)
            | set(self.address.is_some(), room::ADDRESSED);
        let length = u32::try_from(self.payload.len()).ok()?;
        let state = u32::try_from(self.state.len()).ok()?;
        put(room, room::OPERATION, &operation.to_le_bytes())?;
        put(room, room::FLAGS, &flags.to_le_bytes())?;
        put(room, room::OFFSET, &self.part.offset.to_le_bytes())?;
        put(room, room::LENGTH, &length.to_le_bytes())?;
        put(room, room::STATE_LENGTH, &state.to_le_bytes())?;
        put(room, room::ADDRESS, &self.address.unwrap_or(0).to_le_bytes())?;
        put(room, room::STATE, self.state)?;
        put(room, room::PAYLOAD, self.payload)
    }
}

impl Room<'_> {
    /// Copies bytes at a place in the room.
    fn take(&self, place: usize, to: &mut [u8]) -> Result<(), Halt> {
        let end = place.checked_add(to.len()).ok_or(Halt::Fault)?;
        to.copy_from_slice(self.0.get(place..end).ok_or(Halt::Fault)?);
        Ok(())
    }
}

impl PacketService for Module {
    fn about(&self) -> &About {
        &self.about
    }

    fn check(
        &self,
        part: &Part,
        payload: &[u8],
        state: &mut [u8],
        budget: &mut Budget,
    ) -> Result<Verdict, Halt> {
        let packet = Packet { part, payload, state, address: None };
        let (fresh, answer): (_, i32) = self.call(interface::CHECK, &packet, budget)?;
        let answer = match answer {
            verdict::ACCEPT => Verdict::Accept,
            verdict::DROP => Verdict::Drop,
            verdict::REFUSE => Verdict::Refuse,
            _ => return Err(Halt::Fault),
        };
        self.room(&fresh)?.take(room::STATE, state)?;
        Ok(answer)
    }

    fn act(
        &self,
        part: &Part,
        placing: &mut Placing<'_>,
        state: &mut [u8],
        budget: &mut Budget,
    ) -> Result<(), Halt> {
        let packet = Packet { part, payload: placing.bytes, state, address: placing.address };
        let (fresh, ()) = self.call(interface::ACT, &packet, budget)?;
        let room = self.room(&fresh)?;
        room.take(room::STATE, state)?;
        if self.about.stages.rewrites {
            room.take(room::PAYLOAD, placing.bytes)?;
        }
        if let Some(address) = &mut placing.address {
            let mut bytes = [0; 8];
            room.take(room::ADDRESS, &mut bytes)?;
            *address = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    fn transform(&self, part: &Part, payload: &mut [u8], budget: &mut Budget) -> Result<(), Halt> {
        let packet = Packet { part, payload, state: &[], address: None };
        let (fresh, ()) = self.call(interface::TRANSFORM, &packet, budget)?;
        self.room(&fresh)?.take(room::PAYLOAD, payload)
    }
}
