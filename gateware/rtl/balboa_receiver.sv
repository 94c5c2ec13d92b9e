// The receive queues: their entries are claimed for messages that come, filled by the transport, and complete as it says;
// those of a queue pair in ERR are flushed.
//
// One claim, one completion, or one entry that is flushed, a turn; those that a queue pair has claimed are flushed in one. A
// claim takes an entry that was read ahead; it waits where none was, and others have their turns. A shared queue serves
// several queue pairs: each keeps the receives that it has claimed, and none flushes what is posted.
module balboa_receiver
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                             clk,
    input  logic                             rst_n,
    // A turn: the transport claims the next receive of a queue pair, or a claim that waited for its entries is due.
    input  logic                             claims,
    input  port_claim_t                      claim,
    output logic                             claim_is_due,
    output logic                             is_idle,
    // No claim waits, and no entries are under way.
    output logic                             is_quiet,
    output logic                             fatal,
    // What is being done is given up; from then on, and while the engine stops, claims are refused.
    input  logic                             aborts,
    input  logic                             stop,
    // The queue pair of the claim whose turn it is, or of a receive that the transport fills: its place is there a cycle before
    // it is found.
    output logic            [          23:0] find,
    input  logic                             finds,
    input  qp_place_t                        finding,
    input  logic                             has_found,
    input  qp_place_t                        found_place,
    input  qp_t                              found,
    // The receive queue that is worked on: it is read, and stands from the next cycle on.
    output logic                             reads_rq,
    output rq_place_t                        read_rq,
    input  rq_t                              rq,
    input  logic                             is_rq_there,
    // The queue pair whose receives may complete.
    input  logic                             reads_qp,
    input  qp_place_t                        read_qp,
    // A queue pair begins anew; a receive queue does.
    input  logic                             starts,
    input  qp_place_t                        started,
    input  logic                             starts_rq,
    input  rq_place_t                        started_rq,
    input  logic                             clears,
    // The oldest receive of a queue pair is to complete. Whether there was one stands at the end.
    input  logic                             asks,
    input  receive_ask_t                     ask,
    output logic                             ended,
    output logic                             has_completed,
    // A receive queue gets a limit.
    input  logic                             limits,
    input  limit_ask_t                       limit_ask,
    output logic                             limit_ended,
    // A receive that the transport fills, and an element of it: what is named stands in the next cycle.
    input  logic                             asks_message,
    input  qp_place_t                        asked_place,
    input  port_number_t                     asked_number,
    input  logic            [           3:0] asked_element,
    output logic                             is_claimed,
    output receive_t                         asked_receive,
    input  logic                             uses_sge,
    output logic                             is_sge_there,
    output wqe_sge_t                         asked_sge,
    // A receive has flipped; that is told.
    output logic                             has_flip,
    // Receives that the queue pair which was read last has claimed.
    input  logic                             counts,
    output logic            [RECEIVE_BITS:0] claimed_count,
    // A command's answer waits for claims.
    input  logic                             is_done_due,
    // Entries that are read ahead; a ring of them is out of reach, and that is told.
    output logic                             read_valid,
    input  logic                             read_ready,
    output logic            [          47:0] read_address,
    output logic            [          27:0] read_length,
    input  logic                             recv_valid,
    output logic                             recv_ready,
    input  logic            [         511:0] recv_data,
    input  logic                             recv_last,
    input  logic                             fault_valid,
    output logic                             has_fault,
    input  logic                             tells_fault,
    // Host memory.
    output logic                             block_asks,
    output block_ask_t                       block_ask,
    input  logic                             block_ended,
    input  logic                             block_failed,
    input  logic            [         511:0] block,
    // Completions.
    output logic                             cqe_asks,
    output completion_ask_t                  cqe_ask,
    input  logic                             cqe_ended,
    input  logic                             has_lost,
    // Events.
    output logic                             event_asks,
    output event_t                           event_ask,
    input  logic                             event_ended,
    // The transport.
    output logic                             claimed_valid,
    input  logic                             claimed_ready,
    output port_claimed_t                    claimed
);
  typedef enum logic [4:0] {
    IDLE,
    CLAIM,
    CLAIM_SLOT,
    CLAIM_READ,
    CLAIM_ELEMENT,
    CLAIM_TAKEN,
    CLAIMED,
    OLDEST,
    FLUSH_POSTED,
    FLUSH_RECORD,
    FLUSH_ENTRY,
    FLUSH_TAKEN,
    COMPLETED,
    DONE,
    LIMIT,
    LIMIT_RECORD,
    LIMIT_TOLD
  } state_t;

  state_t state;
  state_t next;

  // ---- Receive queues

  typedef struct packed {
    logic [31:0] consumer;
    logic [31:0] producer;
    // Fewer that are posted raise an event; 0 for none.
    logic [15:0] limit;
  } queue_t;

  // What the completion of a receive needs.
  typedef struct packed {
    logic [31:0]          tag;
    logic                 has_failed;
    // The completion queue keeps room for its completion.
    logic                 is_kept;
    logic                 has_bank;
    logic [BANK_BITS-1:0] bank;
  } ended_t;

  // A receive with its element or, where it has more of them, with the bank of those.
  typedef struct packed {
    receive_t receive;
    wqe_sge_t sge;
  } kept_t;

  // Its numbers: the next one, and how many are not complete.
  typedef struct packed {
    logic [31:0]           next;
    logic [RECEIVE_BITS:0] count;
  } claimed_t;

  // Before this cycle, and behind it.
  queue_t                              q;
  queue_t                              q_next;
  logic                                was_read;
  logic                                is_kept_flipped;
  logic                                is_there;
  logic                                sets_limit;
  logic                [         15:0] limit;
  // Receives of the queue pair that was found, of that which was read last, and of that which is worked on.
  claimed_t                            found_claimed;
  numbers_t                            found_numbers;
  logic                                are_found_flipped;
  claimed_t                            read_claimed;
  numbers_t                            read_numbers;
  logic                                are_read_flipped;
  qp_place_t                           at_qp;
  numbers_t                            n;
  numbers_t                            n_next;
  logic                                are_lost;

  // ---- What is being done

  rq_place_t                           rq_place;
  // The claim's receive has a bank for its elements.
  logic                                has_bank;
  logic                [BANK_BITS-1:0] bank;
  // A ring was out of reach: no claim has an entry any more.
  logic                                is_stopped;
  // The claim has waited; it has found an entry.
  logic                                has_waited;
  logic                                has_taken;
  port_claim_t                         asked_claim;
  port_verdict_t                       verdict;
  receive_ask_t                        job;
  qp_place_t                           worked;
  cq_place_t                           worked_cq;
  // Room for the completion was asked for, and the answer is there.
  logic                                knows_room;
  wqe_receive_header_t                 w_header;
  logic                [          4:0] w_element;
  logic                [         35:0] w_capacity;

  // ---- What is looked at

  logic                [         31:0] at_consumer;
  logic                [         31:0] at_producer;
  logic                [         31:0] at_next;
  logic                [         31:0] at_oldest;
  ended_t                              oldest;
  logic                [         31:0] posted;
  logic                [          4:0] w_word;
  logic                [        511:0] slot_block;
  wqe_sge_t                            w_sge;
  logic                [         31:0] entries;
  logic                [         11:0] w_bytes;
  logic                                is_overrun;
  logic                                is_sound;
  receive_t                            taken;
  ended_t                              taken_end;

  assign found_numbers = numbers_of(found_claimed);
  assign read_numbers = numbers_of(read_claimed);
  assign is_there = is_rq_there && !is_kept_flipped;
  assign limit = sets_limit ? limit_ask.limit : q.limit;
  assign at_consumer = q.consumer;
  assign at_producer = q.producer;
  assign at_next = n.next;
  assign at_oldest = n.oldest;
  assign posted = at_producer - at_consumer;
  // The first of the entry's words of 128 bits is its header.
  assign w_word = w_element + 5'd1;
  assign w_sge = slot_block[{w_word[1:0], 7'd0}+:128];
  assign entries = 32'd1 << rq.log2;
  // More are posted than the ring has: nobody can tell which.
  assign is_overrun = posted > entries;
  assign w_bytes = 12'(WQE_RECEIVE_PAYLOAD_OFFSET) + {w_header.num_sge, 4'd0};
  assign is_sound = !is_overrun && w_header.num_sge <= WQE_MAX_SGE[7:0] && w_bytes <= 12'd64 << rq.log2_stride;

  always_comb begin
    taken.pdn = rq.pdn;
    taken.elements = w_header.num_sge[4:0];
    taken.has_failed = !is_sound;
    // More than any message has.
    taken.capacity = w_capacity[35:32] != '0 ? '1 : w_capacity[31:0];
    taken.has_bank = has_bank;
    taken_end = '{
        tag: w_header.tag,
        has_failed: taken.has_failed,
        is_kept: !has_lost,
        has_bank: has_bank,
        bank: bank
    };
  end

  function automatic claimed_t claimed_of(input numbers_t numbers);
    return '{next: numbers.next, count: (RECEIVE_BITS + 1)'(numbers.next - numbers.oldest)};
  endfunction

  function automatic numbers_t numbers_of(input claimed_t these);
    return '{next: these.next, oldest: these.next - 32'(these.count)};
  endfunction

  // ---- Receives: one memory for each who reads

  logic takes;
  logic is_asked_there;
  logic was_asked;
  logic is_asked_flipped;
  logic was_banked;
  logic is_banked_flipped;
  wqe_sge_t banked_sge;
  wqe_sge_t single_sge;
  wqe_sge_t w_first;
  kept_t asked_kept;
  kept_t taken_kept;
  logic is_oldest_flipped;
  logic is_oldest_lost;

  assign is_claimed     = is_asked_there && !is_asked_flipped;
  assign asked_receive  = asked_kept.receive;
  assign asked_sge      = was_banked ? banked_sge : single_sge;
  assign is_sge_there   = !was_banked || !is_banked_flipped;
  assign taken_kept     = '{receive: taken, sge: has_bank ? 128'(bank) : w_first};
  // The oldest one is to complete, and nobody can tell which that is.
  assign is_oldest_lost = state == OLDEST && (are_lost || (at_oldest != at_next && is_oldest_flipped));

  balboa_table #(
      .Width($bits(kept_t)),
      .Depth(QP_PLACES * RECEIVES)
  ) receives_asked (
      .clk,
      .write_enable (takes),
      .write_address({worked, at_next[RECEIVE_BITS-1:0]}),
      .write_data   (taken_kept),
      .read_enable  (1'b1),
      .read_address ({asked_place, asked_number[RECEIVE_BITS-1:0]}),
      .read_data    (asked_kept),
      .is_flipped   (is_asked_flipped)
  );
  balboa_table #(
      .Width($bits(ended_t)),
      .Depth(QP_PLACES * RECEIVES)
  ) receives_ended (
      .clk,
      .write_enable (takes),
      .write_address({worked, at_next[RECEIVE_BITS-1:0]}),
      .write_data   (taken_end),
      .read_enable  (asks),
      .read_address ({ask.place, read_numbers.oldest[RECEIVE_BITS-1:0]}),
      .read_data    (oldest),
      .is_flipped   (is_oldest_flipped)
  );
  balboa_table #(
      .Width($bits(wqe_sge_t)),
      .Depth(BANKS * 16),
      .Style("block")
  ) elements (
      .clk,
      .write_enable (state == CLAIM_ELEMENT && has_bank),
      .write_address({bank, w_element[3:0]}),
      .write_data   (w_sge),
      .read_enable  (1'b1),
      .read_address ({asked_kept.sge[BANK_BITS-1:0], asked_element}),
      .read_data    (banked_sge),
      .is_flipped   (is_banked_flipped)
  );

  // An element stands a cycle behind its receive.
  always_ff @(posedge clk) begin
    was_banked <= asked_receive.has_bank;
    single_sge <= asked_kept.sge;
    if (state == CLAIM_ELEMENT && w_element == '0) w_first <= w_sge;
  end

  always_ff @(posedge clk) begin
    is_asked_there <= !are_found_flipped && has_number(found_numbers, asked_number);
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      was_asked <= 1'b0;
      has_flip  <= 1'b0;
    end else begin
      was_asked <= asks_message;
      if (is_oldest_lost || (was_asked && is_asked_there && is_asked_flipped) || (uses_sge && !is_sge_there) ||
          (was_read && is_rq_there && is_kept_flipped) ||
          ((asks_message || (state == CLAIM && has_found)) && are_found_flipped) || (counts && are_read_flipped))
        has_flip <= 1'b1;
      else if (tells_fault) has_flip <= 1'b0;
    end
  end

  // ---- Entries

  // Blocks that a slot has.
  localparam int unsigned BLOCKS = 16;

  logic has_slot;
  logic is_slot_there;
  logic is_slot_record;
  logic unused_has_slot_record;
  logic [31:0] slot_producer;
  logic [5:0] slot_blocks;
  logic unused_has_room_ahead;
  logic unused_may_read_ahead;
  logic unused_has_spare;
  logic frees_slot;
  logic forgets_slot;
  logic has_slot_room;
  logic asks_slot;
  logic ask_is_record;
  logic [47:0] ask_address;
  logic [4:0] ask_blocks;
  logic is_slot_due;
  rq_place_t slot_due;
  logic passes_slot;
  rq_place_t lacking;
  logic has_lacking_slot;
  logic unused_is_lacking_awaited;
  logic is_entries_quiet;
  logic has_waiting;
  logic is_awaited;
  logic answers_last;
  logic refuses;
  logic parks;
  rq_place_t next_rq;
  port_claim_t next_claim;
  logic [31:0] to_end;
  logic [31:0] burst;
  logic [4:0] stride;
  logic may_take;
  logic is_behind;
  logic has_record;
  logic lacks_slot;
  logic is_full;
  logic receives_now;
  logic lacks_bank;

  balboa_entries #(
      .Queues(RQ_PLACES),
      .Slots (16)
  ) slots (
      .place           (rq_place),
      .is_there        (is_slot_there),
      .is_record_asked (is_slot_record),
      .has_record      (unused_has_slot_record),
      .producer        (slot_producer),
      .takes_record    (has_record),
      .blocks_left     (slot_blocks),
      .block_number    (state == CLAIM_SLOT ? '0 : w_word[4:2]),
      .block           (slot_block),
      .taken           (stride),
      .frees           (frees_slot),
      .forgets         (starts_rq || forgets_slot),
      .forgotten       (starts_rq ? started_rq : rq_place),
      // Claims that wait have what was read for them.
      .looks           (parks),
      .rests           (answers_last),
      .rested          (rq_place),
      .is_due          (is_slot_due),
      .due             (slot_due),
      .passes          (passes_slot),
      .other           (lacking),
      .has_other       (has_lacking_slot),
      .is_other_awaited(unused_is_lacking_awaited),
      .has_room        (has_slot_room),
      .asks            (asks_slot),
      .ask_looks       (is_awaited || parks),
      .asks_more       (1'b0),
      .ask_is_last     (1'b1),
      .has_room_ahead  (unused_has_room_ahead),
      .may_read_ahead  (unused_may_read_ahead),
      .has_spare       (unused_has_spare),
      .asks_ahead      (1'b0),
      .is_quiet        (is_entries_quiet),
      .*
  );

  balboa_claims waiting_claims (
      .reads   (reads_rq),
      .read    (read_rq),
      .place   (rq_place),
      .parked  (asked_claim),
      .answers (state == CLAIMED && claimed_ready && has_waited),
      .has_any (has_waiting),
      .asked   (lacking),
      .has_slot(has_lacking_slot),
      .has_room(has_slot_room),
      .is_due  (claim_is_due),
      .begins  (claims),
      .*
  );

  assign refuses       = is_stopped || has_fault;
  assign is_quiet      = !has_waiting && is_entries_quiet;
  assign stride        = 5'd1 << rq.log2_stride;
  assign to_end        = (entries - (at_consumer & (entries - 32'd1))) << rq.log2_stride;
  assign ask_is_record = posted == '0;
  // What goes on at the start of the ring is read the next time.
  always_comb begin
    burst = BLOCKS;
    if (posted < BLOCKS) burst = posted << rq.log2_stride;
    if (burst > BLOCKS) burst = BLOCKS;
    if (to_end < burst) burst = to_end;
    ask_address = 48'(entry_of(entries_of(rq.ring), at_consumer << rq.log2_stride, rq.log2 + rq.log2_stride));
    ask_blocks  = burst[4:0];
    if (ask_is_record) begin
      ask_address = 48'(record_of(rq.ring));
      ask_blocks  = 5'd1;
    end
  end
  assign is_full = found_numbers.next - found_numbers.oldest == RECEIVES;
  assign receives_now = found.state == QP_STATE_RTR || found.state == QP_STATE_RTS || found.state == QP_STATE_SQD;
  assign may_take = has_found && !are_found_flipped && receives_now && !is_full && !refuses;
  // Others wait for entries of the queue already.
  assign is_behind = !has_waited && is_awaited;
  assign has_record = state == CLAIM_SLOT && is_there && !is_behind && has_slot && is_slot_there && is_slot_record;
  assign parks = !has_waited &&
      (state == CLAIM_READ || (lacks_bank && !is_done_due) ||
       (state == CLAIM_SLOT && is_there && (is_behind || (has_slot && !is_slot_there))));
  // The next entries are read before they are claimed.
  assign lacks_slot = has_taken && !has_slot && posted != '0;
  assign asks_slot = (state == CLAIM_READ || (state == LIMIT && lacks_slot)) && has_slot_room && !refuses;
  assign takes = state == CLAIM_TAKEN && (knows_room || cqe_ended);
  assign frees_slot = has_record || lacks_bank || (takes && (is_overrun || 6'(stride) >= slot_blocks));
  // A record tells the claims that came before it was read, and those of a queue pair in ERR are flushed.
  assign forgets_slot = state == FLUSH_POSTED ||
      (state == CLAIM && has_waited && !may_take && has_slot && is_slot_record);

  // ---- Banks for the elements of receives that have more than one

  logic has_free_bank;
  logic [BANK_BITS-1:0] free_bank;
  logic wants_bank;
  logic completes;
  wqe_receive_header_t slot_header;

  // What can be no receive has one, too. Who lacks one waits, as for entries, which are read anew.
  assign slot_header = wqe_receive_header_t'(slot_block);
  assign wants_bank = state == CLAIM_SLOT && is_there && !is_behind && has_slot && is_slot_there && !is_slot_record &&
      slot_header.num_sge > 8'd1;
  assign lacks_bank = wants_bank && !has_free_bank;

  balboa_banks banks (
      .clk,
      .rst_n,
      .clears,
      .client   (rq.page),
      .has_free (has_free_bank),
      .free     (free_bank),
      .takes    (wants_bank && has_free_bank),
      .taker    (worked),
      .frees    (completes && oldest.has_bank),
      .freed    (oldest.bank),
      .forgets  (counts),
      .forgotten(at_qp)
  );

  always_ff @(posedge clk) begin
    if (state == CLAIM_SLOT) begin
      has_bank <= wants_bank;
      bank     <= free_bank;
    end
  end

  // ---- One thing after the other

  logic keeps;
  logic is_near;
  logic [31:0] left;
  logic is_below;
  logic tells;
  block_ask_t entry;

  assign entry = read_of(entry_of(entries_of(rq.ring), at_consumer << rq.log2_stride, rq.log2 + rq.log2_stride));
  // The oldest receive completes.
  assign completes = state == OLDEST && at_oldest != at_next && !is_oldest_lost;
  assign claimed_count = read_claimed.count;
  // Room for its completion is kept before a message fills it.
  assign keeps = state == CLAIM_ELEMENT && w_element == '0;

  // Fewer are known than the limit, and fewer there are.
  assign is_near = is_there && 32'(limit) > posted;
  assign left = block[31:0] - at_consumer;
  assign is_below = 32'(q.limit) > left;
  assign tells = state == LIMIT_RECORD && block_ended && !block_failed && is_below;

  assign is_idle = state == IDLE;
  assign find = claim_is_due ? next_claim.qpn : claim.qpn;
  assign reads_rq = asks || limits || state == CLAIM;
  always_comb begin
    read_rq = has_waited ? rq_place : found.rq;
    if (asks) read_rq = ask.qp.rq;
    if (limits) read_rq = limit_ask.rq;
  end
  assign fatal = (state == FLUSH_RECORD || state == FLUSH_ENTRY || state == LIMIT_RECORD) && block_ended &&
      block_failed;
  // Only where nothing follows from its loss is a completion not waited for.
  assign ended = state == DONE ||
      (state == COMPLETED && (cqe_ended || (!job.is_flush && job.cqe.status == CQE_STATUS_SUCCESS)));
  assign has_completed = state == COMPLETED;
  assign limit_ended   = (state == LIMIT && !is_near) || (state == LIMIT_RECORD && block_ended && !is_below) ||
      (state == LIMIT_TOLD && event_ended);
  assign event_asks = tells;
  assign claimed_valid = state == CLAIMED;
  assign claimed = '{capacity: taken.capacity, receive: at_next - 32'd1, verdict: verdict, tag: asked_claim.tag};

  always_comb begin
    next       = state;
    block_asks = 1'b0;
    block_ask  = read_of(record_of(rq.ring));
    case (state)
      CLAIM:         next = may_take ? CLAIM_SLOT : CLAIMED;
      CLAIM_SLOT: begin
        next = CLAIM_READ;
        if (has_slot) next = CLAIM_ELEMENT;
        if (has_record) next = slot_producer == at_consumer ? CLAIMED : CLAIM_READ;
        // While a command's answer waits for claims, the peer is to try later.
        if (lacks_bank) next = is_done_due ? CLAIMED : IDLE;
        if (is_behind || (has_slot && !is_slot_there)) next = IDLE;
        if (!is_there) next = CLAIMED;
      end
      // Its turn comes again once they are there.
      CLAIM_READ:    next = IDLE;
      CLAIM_ELEMENT: if (!is_sound || 8'(w_word) >= w_header.num_sge) next = CLAIM_TAKEN;
      CLAIM_TAKEN:   if (takes) next = CLAIMED;
      CLAIMED:       if (claimed_ready) next = has_taken && (is_near || lacks_slot) ? LIMIT : IDLE;
      OLDEST: begin
        next = DONE;
        if (completes) next = COMPLETED;
        else if (job.takes_posted && !job.qp.is_rq_shared) next = FLUSH_POSTED;
      end
      FLUSH_POSTED: begin
        block_asks = is_there;
        next       = FLUSH_RECORD;
        if (posted != '0) begin
          block_ask = entry;
          next      = FLUSH_ENTRY;
        end
        if (!is_there) next = DONE;
      end
      FLUSH_RECORD: begin
        if (block_ended) begin
          block_asks = !block_failed && block[31:0] != at_consumer;
          block_ask  = entry;
          next       = block_asks ? FLUSH_ENTRY : DONE;
        end
      end
      FLUSH_ENTRY:   if (block_ended) next = FLUSH_TAKEN;
      FLUSH_TAKEN:   next = COMPLETED;
      COMPLETED, DONE: begin
        if (ended) next = IDLE;
      end
      LIMIT: begin
        block_asks = is_near;
        next       = is_near ? LIMIT_RECORD : IDLE;
      end
      LIMIT_RECORD: begin
        if (block_ended) next = tells ? LIMIT_TOLD : IDLE;
      end
      LIMIT_TOLD:    if (event_ended) next = IDLE;
      default: begin
        next = IDLE;
        if (claims) next = CLAIM;
        if (asks) next = OLDEST;
        if (limits) next = LIMIT;
      end
    endcase
    if (is_oldest_lost) next = DONE;
    // Its answer comes all the same.
    if (fatal || aborts) next = state == CLAIM_ELEMENT || state == CLAIM_TAKEN ? CLAIMED : IDLE;
  end

  always_comb begin
    cqe_asks              = completes || keeps || state == FLUSH_TAKEN;
    cqe_ask.keeps         = keeps;
    cqe_ask.is_kept       = completes && oldest.is_kept;
    cqe_ask.cq            = keeps ? worked_cq : job.qp.receive_cq;
    cqe_ask.qp            = worked;
    cqe_ask.cqe           = job.cqe;
    cqe_ask.cqe.wqe_index = state == FLUSH_TAKEN ? w_header.tag : oldest.tag;
    if (completes && job.is_flush && oldest.has_failed) cqe_ask.cqe.status = CQE_STATUS_LOCAL_PROTECTION;
    event_ask        = '0;
    event_ask.kind   = EVENT_TYPE_RECEIVE_LIMIT;
    event_ask.number = 32'(rq.number);
  end

  always_ff @(posedge clk) begin
    if (!rst_n) state <= IDLE;
    else state <= next;
  end

  // ---- The question

  always_ff @(posedge clk) begin
    if (!rst_n || clears) is_stopped <= 1'b0;
    else if (aborts || stop) is_stopped <= 1'b1;
  end

  always_ff @(posedge clk) begin
    has_taken  <= takes || (state == CLAIMED && has_taken);
    sets_limit <= limits;
    if (claims) begin
      has_waited  <= claim_is_due;
      asked_claim <= claim_is_due ? next_claim : claim;
      rq_place    <= next_rq;
    end
    if (asks) begin
      job    <= ask;
      worked <= ask.place;
    end
    if (reads_rq) rq_place <= read_rq;
    if (state == CLAIM) begin
      worked    <= found_place;
      worked_cq <= found.receive_cq;
      verdict   <= has_found && !are_found_flipped && !refuses ? PORT_VERDICT_EMPTY : PORT_VERDICT_UNREACHABLE;
    end
    if ((state == CLAIM_SLOT && !is_there) || (aborts && state != CLAIMED)) verdict <= PORT_VERDICT_UNREACHABLE;
    if (keeps) knows_room <= 1'b0;
    else if (cqe_ended) knows_room <= 1'b1;
    if (takes) verdict <= is_sound && !has_lost ? PORT_VERDICT_DONE : PORT_VERDICT_INVALID_RECEIVE;
  end

  // ---- The entry

  always_ff @(posedge clk) begin
    case (state)
      CLAIM_SLOT: begin
        w_header   <= slot_header;
        w_element  <= '0;
        w_capacity <= '0;
      end
      CLAIM_ELEMENT: begin
        w_element <= w_element + 5'd1;
        if (w_header.num_sge != '0) w_capacity <= w_capacity + 36'(w_sge.length);
      end
      FLUSH_ENTRY: if (block_ended) w_header <= wqe_receive_header_t'(block);
      default:     ;
    endcase
  end

  // ---- Indices

  always_comb begin
    q_next = q;
    if (sets_limit) q_next.limit = limit;
    else if (tells) q_next.limit = '0;
    if ((state == FLUSH_RECORD || state == LIMIT_RECORD) && block_ended) q_next.producer = block[31:0];
    if (has_record) q_next.producer = slot_producer;
    if (takes || state == FLUSH_TAKEN) q_next.consumer = is_overrun ? at_producer : at_consumer + 32'd1;
  end

  always_comb begin
    n_next = n;
    if (takes) n_next.next = at_next + 32'd1;
    if (completes) n_next.oldest = at_oldest + 32'd1;
  end

  always_ff @(posedge clk) begin
    n <= n_next;
    if (state == CLAIM) n <= found_numbers;
    if (asks) begin
      n        <= read_numbers;
      are_lost <= are_read_flipped;
    end
    if (reads_qp) at_qp <= read_qp;
  end

  balboa_context #(
      .Width($bits(queue_t)),
      .Depth(RQ_PLACES)
  ) queues (
      .clk,
      .rst_n,
      .clears,
      .starts    (starts_rq),
      .started   (started_rq),
      .reads     (reads_rq),
      .read      (read_rq),
      .place     (rq_place),
      .now       (q),
      .next      (q_next),
      .was_read,
      .is_flipped(is_kept_flipped)
  );
  balboa_table #(
      .Width($bits(claimed_t)),
      .Depth(QP_PLACES),
      .Style("block")
  ) numbers_found (
      .clk,
      .write_enable (starts || n_next != n),
      .write_address(starts ? started : worked),
      .write_data   (starts ? '0 : claimed_of(n_next)),
      .read_enable  (finds),
      .read_address (finding),
      .read_data    (found_claimed),
      .is_flipped   (are_found_flipped)
  );
  // Others change them while a queue pair is worked on.
  balboa_table #(
      .Width($bits(claimed_t)),
      .Depth(QP_PLACES),
      .Style("block")
  ) numbers_read (
      .clk,
      .write_enable (starts || n_next != n),
      .write_address(starts ? started : worked),
      .write_data   (starts ? '0 : claimed_of(n_next)),
      .read_enable  (1'b1),
      .read_address (reads_qp ? read_qp : at_qp),
      .read_data    (read_claimed),
      .is_flipped   (are_read_flipped)
  );
endmodule
