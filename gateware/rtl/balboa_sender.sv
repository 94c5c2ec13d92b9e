// The send queues: their entries become messages of the transport, and the messages' ends become completions.
//
// One entry of a queue pair, or one report, a turn. Messages that failed here have numbers, too, which the transport never
// hears of.
module balboa_sender
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                    clk,
    input  logic                    rst_n,
    // A turn: of a queue pair, of one that lost a completion, or of a report.
    input  logic                    pumps,
    input  qp_place_t               pumped,
    input  logic                    fails,
    input  qp_place_t               failed_place,
    input  logic                    reports,
    input  port_report_t            report,
    input  logic                    is_enabled,
    output logic                    is_idle,
    // Nothing is being done; or nothing but an entry, beside which payload may begin.
    output logic                    rests,
    output logic                    is_sending,
    // No other part is at work.
    input  logic                    is_alone,
    // The last turn of a queue pair left something to send, for which it has another.
    output logic                    has_more,
    output logic                    fatal,
    input  logic                    aborts,
    // The queue pair that is worked on: it is read, and stands from the next cycle on.
    output qp_place_t               place,
    output logic                    reads_qp,
    output qp_place_t               read_qp,
    input  qp_t                     qp,
    input  logic                    is_qp_there,
    output logic                    breaks_qp,
    // A completion of it was lost, which the driver has not heard yet.
    input  logic                    is_lost,
    // That of a report, or of a message that the transport asks for: its place is there a cycle before it is found.
    input  logic                    finds,
    input  qp_place_t               finding,
    input  logic                    has_found,
    input  qp_place_t               found,
    input  logic                    tells_drained,
    // A queue pair begins anew; all end.
    input  logic                    starts,
    input  qp_place_t               started,
    input  logic                    clears,
    // One begins anew, or ends: its messages are forgotten.
    input  logic                    forgets,
    input  qp_place_t               forgotten,
    // It is to be looked at again; some time later, for it lacks what others have.
    output logic                    looks,
    output logic                    lags,
    // Room that the transport gives; in the next cycle it is there, if the queue pair is, and no other is given. It had none
    // before.
    output logic                    may_gain,
    input  logic                    gains,
    input  logic                    is_gaining_there,
    input  qp_place_t               gaining,
    input  logic            [ 15:0] gaining_messages,
    output logic                    is_gaining,
    output logic                    wakes,
    output qp_place_t               gained,
    // A message that the transport asks for, and an element of it: what is named stands in the next cycle.
    input  logic                    asks_message,
    input  qp_place_t               asked_place,
    input  port_number_t            asked_number,
    input  logic            [  3:0] asked_element,
    output logic                    is_current,
    output message_t                asked_message,
    input  logic                    uses_sge,
    output logic                    is_sge_there,
    output wqe_sge_t                asked_sge,
    // A message has flipped; that is told.
    output logic                    has_flip,
    input  logic                    tells_fault,
    // Entries that were read: the slot of the queue pair, what it has, and what is done with it.
    input  logic                    is_rung,
    input  logic                    has_slot,
    input  logic                    is_slot_there,
    input  logic                    is_record_asked,
    input  logic                    has_record,
    input  logic            [ 31:0] slot_producer,
    output logic                    takes_record,
    input  logic            [  5:0] slot_blocks,
    output logic            [  2:0] slot_number,
    input  logic            [511:0] slot_block,
    output logic                    takes_slot,
    output logic            [  4:0] taken_blocks,
    output logic                    frees_slot,
    output logic                    forgets_slot,
    input  logic                    has_slot_room,
    input  logic                    has_spare_slot,
    output logic                    asks_slot,
    output logic                    asks_more,
    input  logic                    has_room_ahead,
    input  logic                    may_read_ahead,
    output logic                    asks_ahead,
    output logic                    ask_is_record,
    output logic                    ask_is_last,
    output logic            [ 47:0] ask_address,
    output logic            [  4:0] ask_blocks,
    // Keys.
    output logic                    key_asks,
    output key_ask_t                key_ask,
    input  logic                    key_ready,
    input  logic                    key_open,
    // Host memory.
    output logic                    block_asks,
    output block_ask_t              block_ask,
    input  logic                    block_ended,
    input  logic                    block_failed,
    input  logic            [511:0] block,
    // Receives of the queue pair.
    output logic                    receive_asks,
    output receive_ask_t            receive_ask,
    input  logic                    receive_ended,
    input  logic                    has_completed,
    // Completions and events.
    output logic                    cqe_asks,
    output completion_ask_t         cqe_ask,
    input  logic                    cqe_ended,
    output logic                    event_asks,
    output event_t                  event_ask,
    input  logic                    event_ended,
    // The transport.
    output logic                    command_asks,
    output port_command_t           command_ask,
    input  logic                    command_waits,
    input  logic                    command_ended,
    output logic                    submit_valid,
    input  logic                    submit_ready,
    output port_submit_t            submit
);
  typedef enum logic [4:0] {
    IDLE,
    PUMP,
    PUMP_ENTRY,
    PUMP_MORE,
    PUMP_BLOCK,
    PUMP_CHECK,
    PUMP_ELEMENT,
    PUMP_KEY,
    PUMP_SUBMIT,
    PUMP_KEPT,
    PUMP_SENT,
    FAIL_TOLD,
    FAIL_HEARD,
    FAIL,
    FAILING,
    FLUSH,
    FLUSH_MESSAGE,
    FLUSH_COMPLETED,
    FLUSH_CLAIMED,
    FLUSH_ANSWERED,
    FLUSH_POSTED,
    FLUSH_RECORD,
    FLUSH_ENTRY,
    FLUSH_TAKEN,
    FLUSH_RECEIVE,
    FLUSH_RECEIVED,
    REPORT,
    REPORT_RECEIVE,
    REPORT_RECEIVED,
    REPORT_ENDED,
    REPORT_COMPLETED
  } state_t;

  state_t state;
  state_t next;

  // ---- Send queues

  typedef struct packed {
    logic                    is_stopped;
    // The driver has heard that it takes no more from a shared receive queue.
    logic                    has_reached_last;
    logic [31:0]             fetch;
    logic [31:0]             producer;
    numbers_t                numbers;
    // It has a bank; the next element there, and how many are in use.
    logic                    has_bank;
    logic [BANK_BITS-1:0]    bank;
    logic [ELEMENT_BITS-1:0] first;
    logic [ELEMENT_BITS:0]   elements;
  } queue_t;

  // What those who look for a queue pair's messages need of it.
  typedef struct packed {
    logic has_bank;
    logic [BANK_BITS-1:0] bank;
    logic [31:0] next;
    // How many are not complete.
    logic [MESSAGE_BITS:0] count;
  } found_t;

  // Where a message, or an element of one, is: in its queue pair's bank, or in the one place that each queue pair has.
  typedef logic [BANK_BITS+MESSAGE_BITS:0] record_t;
  typedef logic [BANK_BITS+ELEMENT_BITS:0] element_t;

  // Before this cycle, and behind it.
  queue_t                    q;
  queue_t                    q_next;
  logic                      was_read;
  logic                      is_kept_flipped;
  logic                      is_there;
  logic             [  15:0] room;
  logic             [  15:0] room_now;
  logic                      is_room_flipped;
  logic             [  15:0] gained_room;
  logic             [  15:0] gained_messages;
  logic                      is_gained_flipped;
  // Those of the queue pair that was found.
  found_t                    found_messages;
  numbers_t                  found_numbers;
  logic                      are_numbers_flipped;

  // ---- What is being done

  port_report_t              r;
  cqe_status_t               cause;
  logic             [ 511:0] w_block             [5];
  logic             [   2:0] w_read;
  logic             [   4:0] w_element;
  logic             [  35:0] w_length;
  logic                      w_unreachable;
  logic             [  31:0] w_posted;
  message_t                  w_message;

  // ---- What is looked at

  logic             [  31:0] at_fetch;
  logic             [  31:0] at_next;
  logic             [  31:0] at_oldest;
  message_t                  oldest;
  logic             [  31:0] blocks;
  wqe_send_header_t          w_header;
  logic             [2559:0] w_all;
  wqe_sge_t                  w_sge;
  logic                      w_is_sound;
  logic             [  31:0] w_takes;
  logic                      is_read;
  logic                      is_offered;
  logic                      is_inline;
  logic                      is_inline_sound;
  logic                      are_elements_sound;
  logic                      can_fail;

  assign is_there = is_qp_there && !is_kept_flipped;
  assign found_numbers = '{next: found_messages.next, oldest: found_messages.next - 32'(found_messages.count)};
  assign at_fetch = q.fetch;
  assign at_next = q.numbers.next;
  assign at_oldest = q.numbers.oldest;
  assign blocks = 32'd1 << qp.log2;
  assign w_header = wqe_send_header_t'(w_block[0]);
  assign w_all = {w_block[4], w_block[3], w_block[2], w_block[1], w_block[0]};
  assign w_sge = w_all[12'd256+{w_element[3:0], 7'd0}+:128];
  // Whether the entry whose header was read can be one, and the blocks that it takes; nobody can tell where the one behind
  // nonsense begins.
  assign w_is_sound = w_header.blocks != '0 && w_header.blocks <= 8'd5 && 32'(w_header.blocks) <= w_posted &&
      w_posted <= blocks;
  assign w_takes = w_is_sound ? 32'(w_header.blocks) : w_posted;
  assign is_read = w_header.opcode == WQE_SEND_OPCODE_READ;
  assign is_offered = is_read || w_header.opcode == WQE_SEND_OPCODE_WRITE ||
      w_header.opcode == WQE_SEND_OPCODE_WRITE_IMM || w_header.opcode == WQE_SEND_OPCODE_SEND ||
      w_header.opcode == WQE_SEND_OPCODE_SEND_IMM;
  assign is_inline = (w_header.flags & WQE_SEND_FLAGS_INLINE) != '0;
  assign is_inline_sound = w_header.num_sge == '0 && w_header.inline_length <= WQE_MAX_INLINE &&
      w_header.inline_length + WQE_SEND_PAYLOAD_OFFSET <= 32'(w_header.blocks) << 6;
  assign are_elements_sound = w_header.num_sge <= WQE_MAX_SGE[7:0] &&
      (32'(w_header.num_sge) << 4) + WQE_SEND_PAYLOAD_OFFSET <= 32'(w_header.blocks) << 6;
  assign can_fail = is_there && qp.state != QP_STATE_RESET && qp.state != QP_STATE_ERR;

  // The completion that an operation has.
  function automatic cqe_opcode_t completed_as(input wqe_send_opcode_t opcode);
    case (opcode)
      WQE_SEND_OPCODE_WRITE, WQE_SEND_OPCODE_WRITE_IMM: return CQE_OPCODE_WRITE;
      WQE_SEND_OPCODE_READ:                             return CQE_OPCODE_READ;
      WQE_SEND_OPCODE_COMPARE_SWAP:                     return CQE_OPCODE_COMPARE_SWAP;
      WQE_SEND_OPCODE_FETCH_ADD:                        return CQE_OPCODE_FETCH_ADD;
      WQE_SEND_OPCODE_LOCAL_INVALIDATE:                 return CQE_OPCODE_LOCAL_INVALIDATE;
      WQE_SEND_OPCODE_BIND_WINDOW:                      return CQE_OPCODE_BIND_WINDOW;
      default:                                          return CQE_OPCODE_SEND;
    endcase
  endfunction

  // A completion of this queue pair.
  function automatic cqe_t send_cqe(input qp_t of, input logic [31:0] index, input cqe_opcode_t opcode,
                                    input cqe_status_t status, input logic [31:0] length);
    cqe_t entry;
    entry            = '0;
    entry.qpn        = 32'(of.number);
    entry.generation = of.generation;
    entry.wqe_index  = index;
    entry.opcode     = opcode;
    entry.status     = status;
    entry.byte_count = length;
    return entry;
  endfunction

  function automatic record_t kept_of(input logic has_bank, input logic [BANK_BITS-1:0] bank, input qp_place_t of,
                                      input logic [31:0] number);
    return has_bank ? {1'b0, bank, number[MESSAGE_BITS-1:0]} : {1'b1, (BANK_BITS + MESSAGE_BITS)'(of)};
  endfunction

  function automatic element_t element_of(input logic has_bank, input logic [BANK_BITS-1:0] bank, input qp_place_t of,
                                          input logic [ELEMENT_BITS-1:0] at);
    return has_bank ? {1'b0, bank, at} : {1'b1, (BANK_BITS + ELEMENT_BITS)'(of)};
  endfunction

  // ---- Messages: one memory for each who reads

  logic    is_asked_there;
  logic    was_asked;
  logic    is_asked_flipped;
  logic    is_sge_flipped;
  logic    is_oldest_flipped;
  record_t oldest_asked;
  record_t kept;
  record_t asked;
  logic    flushes;
  logic    ends;
  logic    is_flushing;
  logic    is_ending;
  logic    is_oldest_lost;

  assign is_current     = is_asked_there && !is_asked_flipped;
  assign is_sge_there   = !is_sge_flipped;
  // The oldest one is to complete, and nobody can tell which that is.
  assign is_oldest_lost = (is_flushing || is_ending) && at_oldest != at_next && is_oldest_flipped;
  assign kept           = kept_of(q.has_bank, q.bank, place, at_next);
  assign asked          = kept_of(found_messages.has_bank, found_messages.bank, asked_place, asked_number);
  always_comb begin
    oldest_asked = kept_of(q.has_bank, q.bank, place, at_oldest + 32'(flushes || ends));
    if (state == REPORT)
      oldest_asked = kept_of(found_messages.has_bank, found_messages.bank, found, found_numbers.oldest);
  end

  // A message is kept in the cycle in which the transport hears of it, before it may ask for its bytes.
  balboa_table #(
      .Width($bits(message_t)),
      .Depth(BANKS * MESSAGES + QP_PLACES)
  ) messages_asked (
      .clk,
      .write_enable (state == PUMP_KEPT),
      .write_address(kept),
      .write_data   (w_message),
      .read_enable  (1'b1),
      .read_address (asked),
      .read_data    (asked_message),
      .is_flipped   (is_asked_flipped)
  );
  balboa_table #(
      .Width($bits(message_t)),
      .Depth(BANKS * MESSAGES + QP_PLACES)
  ) messages_ended (
      .clk,
      .write_enable (state == PUMP_KEPT),
      .write_address(kept),
      .write_data   (w_message),
      .read_enable  (1'b1),
      .read_address (oldest_asked),
      .read_data    (oldest),
      .is_flipped   (is_oldest_flipped)
  );
  balboa_table #(
      .Width($bits(wqe_sge_t)),
      .Depth(BANKS * ELEMENTS + QP_PLACES)
  ) elements (
      .clk,
      .write_enable(key_asks && key_ready),
      .write_address(element_of(q.has_bank, q.bank, place, q.first + ELEMENT_BITS'(w_element))),
      .write_data(w_sge),
      .read_enable(1'b1),
      .read_address(element_of(
          found_messages.has_bank, found_messages.bank, asked_place, asked_message.first + ELEMENT_BITS'(asked_element)
      )),
      .read_data(asked_sge),
      .is_flipped(is_sge_flipped)
  );

  // ---- Banks

  logic                 has_free_bank;
  logic [BANK_BITS-1:0] free_bank;
  logic                 takes_bank;
  logic                 frees_bank;
  logic                 is_cut;
  logic                 is_whole;
  logic                 lacks_elements;
  logic [          4:0] w_elements;

  // The entry was read, and has so many elements to be kept.
  assign is_whole   = state == PUMP_CHECK && !is_cut && !(w_is_sound && 8'(w_read) < w_header.blocks);
  assign w_elements = w_is_sound && is_offered && !is_inline && are_elements_sound ? w_header.num_sge[4:0] : '0;
  // A queue pair has a bank from its first message on until all have ended.
  assign takes_bank = is_whole && !q.has_bank && has_free_bank;
  assign frees_bank = (flushes || ends) && q.has_bank && at_oldest + 32'd1 == at_next;
  always_comb begin
    lacks_elements = is_whole && !takes_bank && w_elements > 5'd1;
    if (q.has_bank) lacks_elements = is_whole && 32'(q.elements) + 32'(w_elements) > ELEMENTS;
  end

  balboa_banks banks (
      .clk,
      .rst_n,
      .clears,
      .client  (qp.page),
      .has_free(has_free_bank),
      .free    (free_bank),
      .takes   (takes_bank),
      .taker   (place),
      .frees   (frees_bank),
      .freed   (q.bank),
      .forgets,
      .forgotten
  );

  always_ff @(posedge clk) begin
    is_asked_there <= !are_numbers_flipped && has_number(found_numbers, asked_number);
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      was_asked <= 1'b0;
      has_flip  <= 1'b0;
    end else begin
      was_asked <= asks_message;
      if (is_oldest_lost || (was_asked && is_asked_there && is_asked_flipped) || (uses_sge && is_sge_flipped) ||
          (was_read && is_qp_there && is_kept_flipped) || (state == PUMP_ENTRY && is_room_flipped) ||
          (is_gaining && is_gaining_there && is_gained_flipped) ||
          ((asks_message || (state == REPORT && has_found)) && are_numbers_flipped))
        has_flip <= 1'b1;
      else if (tells_fault) has_flip <= 1'b0;
    end
  end

  // ---- Slots of entries

  // The record is read while so many blocks are still to be sent: about as many as are sent until it is there.
  localparam logic [5:0] AHEAD = 6'd8;

  logic        sends;
  logic        is_news;
  logic        asks_record_ahead;
  logic        may_send;
  logic        lacks_slot;
  logic        keeps;
  logic        pump_looks;
  logic [31:0] posted;
  logic [31:0] ask_at;
  logic [31:0] ask_left;
  logic [31:0] to_end;
  logic        is_worth_many;
  logic [ 4:0] burst;
  logic [ 4:0] w_more;

  assign sends = is_there && qp.state == QP_STATE_RTS && !q.is_stopped;
  // How many are posted is known anew; of a slot that has no entries, it is all that it has.
  assign is_news = state == PUMP && sends && has_record && is_slot_there;
  assign takes_record = is_news;
  assign may_send = !is_room_flipped && room_now != '0 &&
      (q.has_bank ? at_next - at_oldest != MESSAGES : at_next == at_oldest);
  assign posted = q.producer - at_fetch;
  // Blocks up to the end of the ring, and those that are read: of which the ring has no more than once. Once an entry is sent
  // they go on behind the slot.
  assign ask_at = at_fetch + (state == PUMP_KEPT ? 32'(slot_blocks) : '0);
  assign ask_left = q.producer - ask_at;
  assign to_end = blocks - (ask_at & (blocks - 32'd1));
  // An entry's blocks at most, where it alone will be sent, or few will, and others go without a slot.
  assign is_worth_many = (q.has_bank || has_free_bank) && (has_spare_slot || room_now >= 16'd4);
  always_comb begin
    burst = is_worth_many ? 5'd16 : 5'd5;
    if (ask_left < 32'(burst)) burst = ask_left[4:0];
    if (blocks < 32'(burst)) burst = blocks[4:0];
  end
  // The record is read where the doorbell was rung since it was read.
  assign lacks_slot = state == PUMP_ENTRY && may_send && !has_slot && (posted != '0 || is_rung);
  assign asks_slot = lacks_slot && has_slot_room;
  assign asks_more = state == PUMP_MORE;
  // Behind the last entries that are known of the record is, if there may be more.
  assign asks_record_ahead = ask_left == '0 && is_rung && slot_blocks <= AHEAD && !is_record_asked;
  // Whoever goes on reading keeps its slot. Where all are in use, others' work hides the time that reads take.
  assign asks_ahead = keeps && has_spare_slot && may_read_ahead &&
      (ask_left == '0 ? asks_record_ahead : has_room_ahead);
  assign ask_is_record = state == PUMP_KEPT ? ask_left == '0 : posted == '0;
  assign ask_is_last = ask_is_record || asks_more || 32'(burst) <= to_end;
  always_comb begin
    ask_address = 48'(entry_of(entries_of(qp.ring), ask_at, qp.log2));
    ask_blocks  = 32'(burst) <= to_end ? burst : to_end[4:0];
    if (ask_is_record) begin
      ask_address = 48'(record_of(qp.ring));
      ask_blocks  = 5'd1;
    end
    if (asks_more) begin
      ask_address = 48'(entries_of(qp.ring));
      ask_blocks  = w_more;
    end
  end
  // The entry goes on behind what the slot has.
  assign is_cut = state == PUMP_CHECK && w_is_sound && 8'(w_read) < w_header.blocks && 6'(w_read) == slot_blocks;
  assign slot_number = state == PUMP ? '0 : w_read;
  assign takes_slot = state == PUMP_KEPT;
  assign taken_blocks = w_takes[4:0];
  // A record that comes may have more of it.
  assign frees_slot = (is_news && slot_blocks == '0) || (is_cut && !is_record_asked) ||
      (state == PUMP_KEPT &&
       (w_message.has_failed || (w_takes >= 32'(slot_blocks) && !asks_ahead && !is_record_asked)));
  assign forgets_slot = (state == PUMP && !sends) || breaks_qp;
  assign pump_looks = is_cut || (lacks_slot && !has_slot_room) ||
      (state == PUMP && sends && has_slot && !is_slot_there) ||
      (is_news && slot_producer == at_fetch && is_rung);

  // ---- One thing after the other

  logic goes_on_with;
  logic goes_on;
  // All was given up while an entry was being worked off; that goes on to its end.
  logic gives_up;
  logic begins_end;
  logic is_failing;
  logic tells_lost;
  logic is_failed;
  logic reaches_last;

  // An entry is sent, and the one behind it is to be looked at, if it is known of one; so is what is read meanwhile.
  assign keeps = state == PUMP_KEPT && !w_message.has_failed;
  // One that has a bank goes on once a message of its own has ended.
  assign lags = lacks_elements && !q.has_bank;
  assign goes_on_with = keeps && (q.producer != at_fetch + w_takes || is_rung || is_record_asked);
  assign goes_on = goes_on_with || pump_looks || lags || asks_slot;
  // Asked for and done, or come to without asking.
  assign is_failing = (state == FAIL && begins_end) || (state == FAIL_HEARD && event_ended);
  // The transport may be faster with the end of a queue pair that lost a completion.
  assign tells_lost = state == FLUSH && is_lost && can_fail;
  assign is_failed = (state == FLUSH && is_there && !tells_lost) || (state == FAILING && command_ended);
  assign is_flushing = (state == FLUSH_MESSAGE && begins_end) || (state == FLUSH_COMPLETED && cqe_ended);
  assign is_ending = (state == REPORT_ENDED && is_there) || (state == REPORT_COMPLETED && cqe_ended);
  // The oldest message completes.
  assign flushes = is_flushing && at_oldest != at_next && !is_oldest_flipped;
  assign ends = is_ending && at_oldest != at_next && !is_oldest_flipped && !oldest.has_failed && r.count != '0;

  // While the transport takes a queue pair to ERR, its questions are answered.
  assign is_idle = state == IDLE || (state == FAILING && command_waits);
  assign rests = state == IDLE;
  assign is_sending = state == PUMP || state == PUMP_ENTRY || state == PUMP_MORE || state == PUMP_BLOCK ||
      state == PUMP_CHECK || state == PUMP_ELEMENT || state == PUMP_KEY || state == PUMP_SUBMIT || state == PUMP_KEPT ||
      state == PUMP_SENT;
  // A completion of before, and payload, may still be at work where an entry leads to the end of its queue pair.
  assign begins_end = is_alone && !gives_up;
  assign reads_qp = pumps || fails || state == REPORT;
  always_comb begin
    read_qp = found;
    if (fails) read_qp = failed_place;
    if (pumps) read_qp = pumped;
  end
  assign fatal = (state == FLUSH_RECORD || state == FLUSH_ENTRY) && block_ended && block_failed;
  // A message that ends is a reason to look again, where something is left to be sent. Of queues that are flushed it is one entry a turn:
  // whoever posts for ever keeps nobody waiting.
  assign looks = goes_on_with || state == FLUSH_TAKEN || (is_ending && (q.producer != at_fetch || is_rung)) ||
      (state == FLUSH_RECEIVED && receive_ended && has_completed) || pump_looks;
  // Of what it took from a shared queue all is complete; more it will not take.
  assign reaches_last = state == FLUSH_RECEIVED && receive_ended && !has_completed && qp.is_rq_shared &&
      !q.has_reached_last;
  assign breaks_qp = is_failed && qp.state != QP_STATE_RESET;
  // The transport may ask for its bytes in the next cycle at the earliest, and it is kept then.
  assign submit_valid = keeps || state == PUMP_SENT;
  assign key_asks = state == PUMP_ELEMENT;
  assign key_ask = '{
          key: w_sge.lkey,
          pdn: qp.pdn,
          va: w_sge.address,
          length: w_sge.length,
          right: is_read ? KEY_ACCESS_LOCAL_WRITE : '0
      };

  always_comb begin
    next           = state;
    block_asks     = 1'b0;
    block_ask      = read_of(entry_of(entries_of(qp.ring), at_fetch, qp.log2));
    event_asks     = 1'b0;
    event_ask      = '0;
    event_ask.kind = EVENT_TYPE_QP;
    case (state)
      // ---- An entry of a queue pair
      PUMP: begin
        next = IDLE;
        // Its turn comes again once its slot is there.
        if (sends && !(has_slot && !is_slot_there)) next = PUMP_ENTRY;
        if (is_news && slot_producer == at_fetch) next = IDLE;
        if (qp.state == QP_STATE_ERR) next = FLUSH_MESSAGE;
      end
      PUMP_ENTRY: begin
        next = IDLE;
        if (may_send && has_slot) next = PUMP_BLOCK;
        if (asks_slot && !ask_is_last) next = PUMP_MORE;
      end
      PUMP_MORE:                      next = IDLE;
      PUMP_BLOCK:                     next = PUMP_CHECK;
      PUMP_CHECK: begin
        next = PUMP_KEPT;
        if (is_cut || lacks_elements) next = IDLE;
        else if (w_is_sound && 8'(w_read) < w_header.blocks) begin
          next = PUMP_BLOCK;
        end else if (w_is_sound && is_offered) begin
          if (is_inline && is_inline_sound && !is_read) next = PUMP_SUBMIT;
          if (!is_inline && are_elements_sound) next = w_header.num_sge == '0 ? PUMP_SUBMIT : PUMP_ELEMENT;
        end
      end
      PUMP_ELEMENT:                   if (key_ready) next = PUMP_KEY;
      PUMP_KEY:                       next = w_element + 5'd1 == w_message.elements ? PUMP_SUBMIT : PUMP_ELEMENT;
      PUMP_SUBMIT:                    next = PUMP_KEPT;
      PUMP_KEPT: begin
        next = submit_ready ? IDLE : PUMP_SENT;
        // A failed entry completes when all before it have.
        if (w_message.has_failed) next = at_next == at_oldest ? FAIL : IDLE;
      end
      PUMP_SENT:                      if (submit_ready) next = IDLE;
      // ---- A queue pair fails, or is in ERR: the oldest message has `cause`, all others are flushed
      FAIL_TOLD: begin
        event_ask.code   = 8'(EVENT_QP_EVENT_FATAL);
        event_ask.number = 32'(qp.number);
        event_asks       = can_fail;
        next             = can_fail ? FAIL_HEARD : IDLE;
      end
      FAIL, FAIL_HEARD:               if (is_failing) next = FAILING;
      FAILING, FLUSH: begin
        if (is_failed) next = qp.state == QP_STATE_RESET ? IDLE : FLUSH_MESSAGE;
        if (tells_lost) next = FAIL_TOLD;
      end
      FLUSH_MESSAGE, FLUSH_COMPLETED: if (is_flushing) next = flushes ? FLUSH_COMPLETED : FLUSH_CLAIMED;
      // All of them in this turn: a report that comes behind it, of a message of before, finds none, and so does not complete
      // the receive of another message.
      FLUSH_CLAIMED:                  next = FLUSH_ANSWERED;
      FLUSH_ANSWERED:                 if (receive_ended) next = has_completed ? FLUSH_CLAIMED : FLUSH_POSTED;
      FLUSH_POSTED: begin
        block_ask  = read_of(record_of(qp.ring));
        block_asks = 1'b1;
        next       = FLUSH_RECORD;
      end
      FLUSH_RECORD: begin
        if (block_ended) begin
          block_asks = !block_failed && block[31:0] != at_fetch;
          next       = block_asks ? FLUSH_ENTRY : FLUSH_RECEIVE;
        end
      end
      FLUSH_ENTRY:                    if (block_ended) next = FLUSH_TAKEN;
      FLUSH_TAKEN:                    next = IDLE;
      FLUSH_RECEIVE:                  next = FLUSH_RECEIVED;
      FLUSH_RECEIVED: begin
        event_ask.code   = 8'(EVENT_QP_EVENT_LAST_WQE_REACHED);
        event_ask.number = 32'(qp.number);
        event_asks       = reaches_last;
        if (receive_ended) next = IDLE;
      end
      // ---- What the transport reports
      REPORT: begin
        next = IDLE;
        if (r.kind == PORT_REPORT_LINK) begin
          event_ask.kind = EVENT_TYPE_PORT;
          event_ask.code = 8'(r.count != '0);
          event_asks     = is_enabled;
        end else if (has_found && !are_numbers_flipped) begin
          case (r.kind)
            PORT_REPORT_ENDED:                     next = REPORT_ENDED;
            PORT_REPORT_FAILED, PORT_REPORT_ERROR: next = FLUSH;
            PORT_REPORT_EVENT: begin
              event_ask.code   = 8'(r.event_);
              event_ask.number = 32'(r.qpn);
              event_asks       = r.event_ != EVENT_QP_EVENT_SQ_DRAINED || tells_drained;
            end
            default:                               next = REPORT_RECEIVE;
          endcase
        end
      end
      REPORT_RECEIVE:                 next = REPORT_RECEIVED;
      REPORT_RECEIVED:                if (receive_ended) next = r.kind == PORT_REPORT_COMMIT ? IDLE : FLUSH;
      REPORT_ENDED, REPORT_COMPLETED: begin
        // The last completion is waited for only where something is behind it.
        if (state == REPORT_COMPLETED && r.count == '0 && !(at_oldest != at_next && oldest.has_failed)) next = IDLE;
        else if (is_ending) begin
          next = IDLE;
          if (ends) next = oldest.is_signaled ? REPORT_COMPLETED : REPORT_ENDED;
          // It was never submitted; all before it have ended.
          else if (at_oldest != at_next && oldest.has_failed) next = FAIL;
        end
      end
      default: begin
        next = IDLE;
        if (pumps) next = PUMP;
        if (fails) next = FAIL_TOLD;
        if (reports) next = REPORT;
      end
    endcase
    if (fatal || ((aborts || gives_up) && !is_sending) || is_oldest_lost || (was_read && !is_there && state != IDLE))
      next = IDLE;
  end

  always_comb begin
    cqe_asks    = flushes || (ends && oldest.is_signaled) || state == FLUSH_TAKEN;
    cqe_ask     = '0;
    cqe_ask.cq  = qp.send_cq;
    cqe_ask.qp  = place;
    cqe_ask.cqe = send_cqe(qp, oldest.index, oldest.opcode, CQE_STATUS_SUCCESS, oldest.length);
    if (is_flushing) cqe_ask.cqe = send_cqe(qp, oldest.index, oldest.opcode, cause, '0);
    if (state == FLUSH_TAKEN)
      cqe_ask.cqe = send_cqe(
        qp, at_fetch, w_is_sound ? completed_as(w_header.opcode) : CQE_OPCODE_SEND, CQE_STATUS_FLUSHED, '0
      );

    receive_asks = is_there && (state == FLUSH_CLAIMED || state == FLUSH_RECEIVE || state == REPORT_RECEIVE);
    receive_ask = '{
        is_flush: state != REPORT_RECEIVE,
        takes_posted: state == FLUSH_RECEIVE,
        place: place,
        qp: qp,
        cqe: flushed_receive(qp)
    };
    if (state == REPORT_RECEIVE) begin
      receive_ask.cqe.status = r.kind == PORT_REPORT_COMMIT ? CQE_STATUS_SUCCESS : r.status;
      if (r.kind == PORT_REPORT_COMMIT) begin
        receive_ask.cqe.byte_count = r.count;
        if (r.is_write) receive_ask.cqe.opcode = CQE_OPCODE_RECEIVE_WRITE_IMM;
        if (r.has_immediate) begin
          receive_ask.cqe.immediate = r.immediate;
          receive_ask.cqe.flags |= CQE_FLAGS_IMMEDIATE;
        end
        if (r.solicited) receive_ask.cqe.flags |= CQE_FLAGS_SOLICITED;
      end
    end

    command_asks                 = is_failing;
    command_ask                  = '0;
    command_ask.operation        = PORT_COMMAND_MODIFY;
    command_ask.qpn              = qp.number;
    command_ask.attributes.mask  = QP_ATTRIBUTE_MASK_STATE;
    command_ask.attributes.state = QP_STATE_ERR;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state    <= IDLE;
      gives_up <= 1'b0;
    end else begin
      state    <= next;
      gives_up <= next != IDLE && (aborts || gives_up);
    end
  end

  // ---- The queue pair, and why it fails

  always_ff @(posedge clk) begin
    if (reads_qp) place <= read_qp;
  end

  always_ff @(posedge clk) begin
    if (pumps) has_more <= 1'b0;
    else if (goes_on) has_more <= 1'b1;
  end

  always_ff @(posedge clk) begin
    if (reports) r <= report;
    else if (is_ending) r.count <= r.count - 32'd1;
  end

  always_ff @(posedge clk) begin
    if (state == PUMP || fails || flushes) cause <= CQE_STATUS_FLUSHED;
    if (state == PUMP_KEPT && w_message.has_failed) cause <= w_message.status;
    if (state == REPORT) cause <= r.kind == PORT_REPORT_FAILED ? r.status : CQE_STATUS_FLUSHED;
    if (is_ending && oldest.has_failed) cause <= oldest.status;
  end

  // ---- The entry

  always_ff @(posedge clk) begin
    case (state)
      PUMP_ENTRY: begin
        w_read        <= '0;
        w_element     <= '0;
        w_length      <= '0;
        w_unreachable <= 1'b0;
        w_posted      <= posted;
        w_more        <= burst - to_end[4:0];
      end
      PUMP_BLOCK: begin
        for (int i = 0; i < 5; i++) if (w_read == 3'(i)) w_block[i] <= slot_block;
        w_read <= w_read + 3'd1;
      end
      PUMP_CHECK: begin
        w_message             <= '0;
        w_message.index       <= at_fetch;
        w_message.is_signaled <= w_is_sound && (w_header.flags & WQE_SEND_FLAGS_SIGNALED) != '0;
        w_message.is_inline   <= is_inline;
        w_message.opcode      <= w_is_sound ? completed_as(w_header.opcode) : CQE_OPCODE_SEND;
        w_message.has_failed  <= 1'b1;
        w_message.status      <= CQE_STATUS_LOCAL_QP_OPERATION;
        if (is_inline) w_length <= 36'(w_header.inline_length);
        w_message.elements <= w_elements;
        w_message.first    <= q.first;
      end
      PUMP_ELEMENT: if (key_ready) w_length <= w_length + 36'(w_sge.length);
      PUMP_KEY: begin
        if (w_sge.length != '0 && !key_open) w_unreachable <= 1'b1;
        w_element <= w_element + 5'd1;
      end
      PUMP_SUBMIT: begin
        w_message.length      <= w_length[31:0];
        submit                <= '0;
        submit.qpn            <= qp.number;
        submit.operation      <= w_header.opcode;
        submit.solicited      <= (w_header.flags & WQE_SEND_FLAGS_SOLICITED) != '0;
        submit.fence          <= (w_header.flags & WQE_SEND_FLAGS_FENCE) != '0;
        submit.length         <= w_length[31:0];
        submit.immediate      <= w_header.immediate;
        submit.remote_address <= w_header.remote_address;
        submit.rkey           <= w_header.rkey;
        if (w_length > 36'(MAX_MESSAGE)) w_message.status <= CQE_STATUS_LOCAL_LENGTH;
        else if (w_unreachable) w_message.status <= CQE_STATUS_LOCAL_PROTECTION;
        else w_message.has_failed <= is_read && !qp.can_read;
      end
      FLUSH_RECORD: if (block_ended) w_posted <= block[31:0] - at_fetch;
      FLUSH_ENTRY:  if (block_ended) w_block[0] <= block;
      default:      ;
    endcase
  end

  // ---- Indices

  always_comb begin
    q_next = q;
    if (state == FLUSH_RECORD && block_ended) q_next.producer = block[31:0];
    if (is_news) q_next.producer = slot_producer;
    if (state == PUMP_KEPT || state == FLUSH_TAKEN) q_next.fetch = at_fetch + w_takes;
    if (state == PUMP_KEPT) begin
      q_next.numbers.next = at_next + 32'd1;
      if (w_message.has_failed) q_next.is_stopped = 1'b1;
    end
    if (takes_bank) begin
      q_next.has_bank = 1'b1;
      q_next.bank     = free_bank;
    end
    if (state == PUMP_KEPT && q.has_bank) begin
      q_next.first    = q.first + ELEMENT_BITS'(w_message.elements);
      q_next.elements = q.elements + (ELEMENT_BITS + 1)'(w_message.elements);
    end
    if (flushes || ends) begin
      q_next.numbers.oldest = at_oldest + 32'd1;
      if (q.has_bank) q_next.elements = q.elements - (ELEMENT_BITS + 1)'(oldest.elements);
    end
    if (frees_bank) q_next.has_bank = 1'b0;
    if (reaches_last) q_next.has_reached_last = 1'b1;
  end

  balboa_context #(
      .Width($bits(queue_t)),
      .Depth(QP_PLACES)
  ) queues (
      .clk,
      .rst_n,
      // A turn that is given up ends without it.
      .clears    (1'b0),
      .starts,
      .started,
      .reads     (reads_qp),
      .read      (read_qp),
      .place,
      .now       (q),
      .next      (q_next),
      .was_read,
      .is_flipped(is_kept_flipped)
  );

  // The same for those who look for its messages.
  function automatic found_t found_of(input queue_t of);
    return
    '{
        has_bank: of.has_bank,
        bank: of.bank,
        next: of.numbers.next,
        count: (MESSAGE_BITS + 1)'(of.numbers.next - of.numbers.oldest)
    }
    ;
  endfunction

  balboa_table #(
      .Width($bits(found_t)),
      .Depth(QP_PLACES),
      .Style("block")
  ) numbers (
      .clk,
      .write_enable (starts || found_of(q_next) != found_of(q)),
      .write_address(starts ? started : place),
      .write_data   (starts ? '0 : found_of(q_next)),
      .read_enable  (finds),
      .read_address (finding),
      .read_data    (found_messages),
      .is_flipped   (are_numbers_flipped)
  );

  // ---- Room for messages at the transport

  logic             has_gained;
  logic             writes_room;
  qp_place_t        written;
  logic      [15:0] written_room;
  // What came to that of this queue pair since it was read.
  logic      [15:0] room_since;

  // A message takes room where none is given in the same cycle, nor in the one before.
  assign may_gain    = state != PUMP_SUBMIT && state != PUMP_KEPT;
  assign has_gained  = is_gaining && is_gaining_there && !is_gained_flipped;
  assign wakes       = has_gained && gained_room == '0;
  assign room_now    = room + room_since;
  assign writes_room = starts || has_gained || keeps;
  always_comb begin
    written      = gained;
    written_room = gained_room + gained_messages;
    if (keeps) begin
      written      = place;
      written_room = room_now - 16'd1;
    end
    if (starts) begin
      written      = started;
      written_room = '0;
    end
  end

  always_ff @(posedge clk) begin
    if (reads_qp) room_since <= has_gained && gained == read_qp ? gained_messages : '0;
    else if (has_gained && gained == place) room_since <= room_since + gained_messages;
  end

  balboa_table #(
      .Width(16),
      .Depth(QP_PLACES)
  ) rooms (
      .clk,
      .write_enable (writes_room),
      .write_address(written),
      .write_data   (written_room),
      .read_enable  (reads_qp),
      .read_address (read_qp),
      .read_data    (room),
      .is_flipped   (is_room_flipped)
  );
  balboa_table #(
      .Width(16),
      .Depth(QP_PLACES)
  ) rooms_given (
      .clk,
      .write_enable (writes_room),
      .write_address(written),
      .write_data   (written_room),
      .read_enable  (gains),
      .read_address (gaining),
      .read_data    (gained_room),
      .is_flipped   (is_gained_flipped)
  );

  always_ff @(posedge clk) begin
    if (!rst_n) is_gaining <= 1'b0;
    else is_gaining <= gains;
  end

  always_ff @(posedge clk) begin
    gained          <= gaining;
    gained_messages <= gaining_messages;
  end
endmodule
