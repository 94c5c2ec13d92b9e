// The receive queues: their entries are claimed for messages that come, filled by the transport, and complete as it says;
// those of a queue pair in ERR are flushed.
//
// One claim, one completion, or one entry that is flushed, a turn. A shared queue serves several queue pairs: each keeps the
// receives that it has claimed, and none flushes what is posted.
module balboa_receiver
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                             clk,
    input  logic                             rst_n,
    // A turn: the transport claims the next receive of a queue pair.
    input  logic                             claims,
    input  port_claim_t                      claim,
    output logic                             is_idle,
    output logic                             fatal,
    input  logic                             aborts,
    // That of a claim.
    output logic                             finds,
    output logic            [          23:0] find,
    input  logic                             has_found,
    input  qp_place_t                        found_place,
    input  qp_t                              found,
    // The receive queue that is worked on.
    output rq_place_t                        rq_place,
    input  rq_t                              rq,
    // A queue pair begins anew; a receive queue does.
    input  logic                             starts,
    input  qp_place_t                        started,
    input  logic                             starts_rq,
    input  rq_place_t                        started_rq,
    // The oldest receive of a queue pair is to complete. Whether there was one stands at the end.
    input  logic                             asks,
    input  receive_ask_t                     ask,
    output logic                             ended,
    output logic                             has_completed,
    // A receive queue gets a limit.
    input  logic                             limits,
    input  limit_ask_t                       limit_ask,
    output logic                             limit_ended,
    // A receive that the transport fills.
    input  qp_place_t                        asked_place,
    input  port_number_t                     asked_number,
    input  logic            [           3:0] asked_element,
    output logic                             is_claimed,
    output receive_t                         asked_receive,
    output wqe_sge_t                         asked_sge,
    // Receives that a queue pair has claimed.
    input  qp_place_t                        counted_place,
    output logic            [RECEIVE_BITS:0] claimed_count,
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
    OLDEST,
    LOOK,
    RECORD,
    ENTRY,
    BLOCK,
    CHECK,
    ELEMENT,
    TAKEN,
    CLAIMED,
    COMPLETED,
    DONE,
    LIMIT,
    LIMIT_RECORD,
    LIMIT_TOLD
  } state_t;

  state_t                       state;
  state_t                       next;

  // ---- Receive queues

  logic                [  31:0] consumer     [            RQS];
  logic                [  31:0] producer     [            RQS];
  // Fewer that are posted raise an event; 0 for none.
  logic                [  15:0] limit        [            RQS];
  // Numbers of receives that were claimed: the next one, and the oldest that is not complete.
  logic                [  31:0] next_number  [            QPS];
  logic                [  31:0] oldest_number[            QPS];
  receive_t                     receives     [   QPS*RECEIVES];
  wqe_sge_t                     elements     [QPS*RECEIVES*16];

  // ---- What is being done

  logic                         is_claim;
  // It has found an entry.
  logic                         has_taken;
  port_tag_t                    tag;
  port_verdict_t                verdict;
  receive_ask_t                 job;
  qp_place_t                    worked;
  cq_place_t                    worked_cq;
  // Room for the completion was asked for, and the answer is there.
  logic                         knows_room;
  logic                [ 511:0] w_block      [              5];
  logic                [   2:0] w_read;
  logic                [   4:0] w_element;
  logic                [  35:0] w_capacity;

  // ---- What is looked at

  logic                [  31:0] at_consumer;
  logic                [  31:0] at_producer;
  logic                [  31:0] at_next;
  logic                [  31:0] at_oldest;
  receive_t                     oldest;
  wqe_receive_header_t          w_header;
  logic                [2559:0] w_all;
  wqe_sge_t                     w_sge;
  logic                [  31:0] entries;
  logic                [  11:0] w_bytes;
  logic                         is_overrun;
  logic                         is_sound;
  receive_t                     taken;

  assign at_consumer = consumer[rq_place];
  assign at_producer = producer[rq_place];
  assign at_next = next_number[worked];
  assign at_oldest = oldest_number[worked];
  assign oldest = receives[{worked, at_oldest[RECEIVE_BITS-1:0]}];
  assign w_header = wqe_receive_header_t'(w_block[0]);
  assign w_all = {w_block[4], w_block[3], w_block[2], w_block[1], w_block[0]};
  assign w_sge = w_all[12'd128+{w_element[3:0], 7'd0}+:128];
  assign entries = 32'd1 << rq.log2;
  // More are posted than the ring has: nobody can tell which.
  assign is_overrun = at_producer - at_consumer > entries;
  assign w_bytes = 12'(WQE_RECEIVE_PAYLOAD_OFFSET) + {w_header.num_sge, 4'd0};
  assign is_sound = !is_overrun && w_header.num_sge <= WQE_MAX_SGE[7:0] && w_bytes <= 12'd64 << rq.log2_stride;

  assign asked_receive = receives[{asked_place, asked_number[RECEIVE_BITS-1:0]}];
  assign asked_sge = elements[{asked_place, asked_number[RECEIVE_BITS-1:0], asked_element}];
  assign is_claimed = asked_number - oldest_number[asked_place] < next_number[asked_place] - oldest_number[asked_place];

  always_comb begin
    taken.tag        = w_header.tag;
    taken.pdn        = rq.pdn;
    taken.elements   = w_header.num_sge[4:0];
    taken.has_failed = !is_sound;
    taken.is_kept    = !has_lost;
    // More than any message has.
    taken.capacity   = w_capacity[35:32] != '0 ? '1 : w_capacity[31:0];
  end

  // ---- One thing after the other

  logic is_full;
  logic receives_now;
  logic completes;
  logic is_whole;
  logic keeps;
  logic takes;
  logic is_near;
  logic [31:0] left;
  logic is_below;
  logic tells;

  assign is_full = next_number[found_place] - oldest_number[found_place] == RECEIVES;
  assign receives_now = found.state == QP_STATE_RTR || found.state == QP_STATE_RTS || found.state == QP_STATE_SQD;
  // The oldest receive completes.
  assign completes = state == OLDEST && at_oldest != at_next;
  assign claimed_count = (RECEIVE_BITS + 1)'(next_number[counted_place] - oldest_number[counted_place]);
  // All that is read of an entry is there: room for its completion is to be kept before the message fills it.
  assign is_whole = !is_sound || {3'd0, w_read, 6'd0} >= w_bytes;
  assign keeps = state == CHECK && is_claim && is_whole;
  assign takes = state == TAKEN && (!is_claim || knows_room || cqe_ended);

  // Fewer are known than the limit, and fewer there are.
  assign is_near = 32'(limit[rq_place]) > at_producer - at_consumer;
  assign left = block[31:0] - at_consumer;
  assign is_below = 32'(limit[rq_place]) > left;
  assign tells = state == LIMIT_RECORD && block_ended && !block_failed && is_below;

  assign is_idle = state == IDLE;
  assign finds = state == CLAIM;
  assign fatal = (state == RECORD || state == BLOCK || state == LIMIT_RECORD) && block_ended && block_failed;
  assign ended = state == DONE || (state == COMPLETED && cqe_ended);
  assign has_completed = state == COMPLETED;
  assign limit_ended   = (state == LIMIT && !is_near) || (state == LIMIT_RECORD && block_ended && !is_below) ||
      (state == LIMIT_TOLD && event_ended);
  assign event_asks = tells;
  assign claimed_valid = state == CLAIMED;
  assign claimed = '{capacity: taken.capacity, receive: at_next - 32'd1, verdict: verdict, tag: tag};

  always_comb begin
    next       = state;
    block_asks = 1'b0;
    block_ask  = read_of(rq.ring);
    case (state)
      CLAIM:      next = has_found && receives_now && !is_full ? LOOK : CLAIMED;
      OLDEST: begin
        next = DONE;
        if (completes) next = COMPLETED;
        else if (job.is_flush && !job.qp.is_rq_shared) next = LOOK;
      end
      LOOK: begin
        block_asks = at_consumer == at_producer;
        next       = block_asks ? RECORD : ENTRY;
      end
      RECORD: begin
        if (block_ended) begin
          next = ENTRY;
          if (block[31:0] == at_consumer) next = is_claim ? CLAIMED : DONE;
        end
      end
      ENTRY: begin
        block_ask = read_of(
            entry_of(rq.ring + 64'd64, (at_consumer << rq.log2_stride) + 32'(w_read), rq.log2 + rq.log2_stride));
        block_asks = 1'b1;
        next = BLOCK;
      end
      BLOCK:      if (block_ended) next = CHECK;
      CHECK: begin
        next = TAKEN;
        if (is_claim && is_sound) begin
          if (!is_whole) next = ENTRY;
          else if (w_header.num_sge != '0) next = ELEMENT;
        end
      end
      ELEMENT:    if (8'(w_element) + 8'd1 == w_header.num_sge) next = TAKEN;
      TAKEN:      if (takes) next = is_claim ? CLAIMED : COMPLETED;
      CLAIMED:    if (claimed_ready) next = has_taken ? LIMIT : IDLE;
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
      LIMIT_TOLD: if (event_ended) next = IDLE;
      default: begin
        next = IDLE;
        if (claims) next = CLAIM;
        if (asks) next = OLDEST;
        if (limits) next = LIMIT;
      end
    endcase
    if (fatal || aborts) next = IDLE;
  end

  always_comb begin
    cqe_asks              = completes || keeps || (takes && !is_claim);
    cqe_ask.keeps         = keeps;
    cqe_ask.is_kept       = completes && oldest.is_kept;
    cqe_ask.cq            = keeps ? worked_cq : job.qp.receive_cq;
    cqe_ask.qp            = worked;
    cqe_ask.cqe           = job.cqe;
    cqe_ask.cqe.wqe_index = state == TAKEN ? w_header.tag : oldest.tag;
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
    if (claims) begin
      is_claim  <= 1'b1;
      has_taken <= 1'b0;
      tag       <= claim.tag;
      find      <= claim.qpn;
    end
    if (asks) begin
      is_claim <= 1'b0;
      job      <= ask;
      worked   <= ask.place;
      rq_place <= ask.qp.rq;
    end
    if (limits) rq_place <= limit_ask.rq;
    if (state == CLAIM) begin
      worked    <= found_place;
      worked_cq <= found.receive_cq;
      rq_place  <= found.rq;
      verdict   <= has_found ? PORT_VERDICT_EMPTY : PORT_VERDICT_UNREACHABLE;
    end
    if (takes) has_taken <= 1'b1;
    if (takes) verdict <= is_sound && !has_lost ? PORT_VERDICT_DONE : PORT_VERDICT_INVALID_RECEIVE;
    if (keeps) knows_room <= 1'b0;
    else if (cqe_ended) knows_room <= 1'b1;
  end

  // ---- The entry

  always_ff @(posedge clk) begin
    case (state)
      LOOK: begin
        w_read     <= '0;
        w_element  <= '0;
        w_capacity <= '0;
      end
      BLOCK:
      if (block_ended) begin
        for (int i = 0; i < 5; i++) if (w_read == 3'(i)) w_block[i] <= block;
        w_read <= w_read + 3'd1;
      end
      ELEMENT: begin
        w_element  <= w_element + 5'd1;
        w_capacity <= w_capacity + 36'(w_sge.length);
      end
      default: ;
    endcase
  end

  always_ff @(posedge clk) begin
    if (state == ELEMENT) elements[{worked, at_next[RECEIVE_BITS-1:0], w_element[3:0]}] <= w_sge;
    if (takes && is_claim) receives[{worked, at_next[RECEIVE_BITS-1:0]}] <= taken;
  end

  // ---- Indices

  always_ff @(posedge clk) begin
    if (starts_rq) begin
      consumer[started_rq] <= '0;
      producer[started_rq] <= '0;
      limit[started_rq]    <= '0;
    end else begin
      if (limits) limit[limit_ask.rq] <= limit_ask.limit;
      else if (tells) limit[rq_place] <= '0;
      if ((state == RECORD || state == LIMIT_RECORD) && block_ended) producer[rq_place] <= block[31:0];
      if (takes) consumer[rq_place] <= is_overrun ? at_producer : at_consumer + 32'd1;
    end
  end

  always_ff @(posedge clk) begin
    if (starts) begin
      next_number[started]   <= '0;
      oldest_number[started] <= '0;
    end else begin
      if (takes && is_claim) next_number[worked] <= at_next + 32'd1;
      if (completes) oldest_number[worked] <= at_oldest + 32'd1;
    end
  end
endmodule
