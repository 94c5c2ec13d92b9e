// The bytes of messages for the transport: gathered from host memory, aligned, and kept until all of them are there.
//
// A question takes a turn until all its bytes are asked for. They come later, and are the transport's in the order of the
// questions.
module balboa_gather
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
  import balboa_card_pkg::*;
(
    input  logic                  clk,
    input  logic                  rst_n,
    input  logic                  asks,
    input  port_transfer_t        ask,
    output logic                  is_idle,
    // There is room for one more question; no question is under way.
    output logic                  has_room,
    output logic                  is_quiet,
    // Its queue pair.
    input  logic                  has_found,
    input  qp_place_t             found_place,
    input  qp_t                   found,
    // Its message, and an element of that: what is named stands in the next cycle.
    output logic                  asks_message,
    output qp_place_t             place,
    output port_number_t          number,
    output logic           [ 3:0] element,
    input  logic                  is_current,
    input  message_t              message,
    output logic                  uses_sge,
    input  logic                  is_sge_there,
    input  wqe_sge_t              sge,
    // Keys.
    output logic                  key_asks,
    output key_ask_t              key_ask,
    input  logic                  key_open,
    input  logic           [63:0] key_iova,
    // Host memory.
    output logic                  read_valid,
    input  logic                  read_ready,
    output logic           [47:0] read_address,
    output logic           [27:0] read_length,
    input  logic                  recv_valid,
    output logic                  recv_ready,
    input  host_beat_t            recv,
    // The oldest read is out of reach.
    input  logic                  fault_valid,
    // The transport.
    output logic                  fetched_valid,
    input  logic                  fetched_ready,
    output port_fetched_t         fetched,
    output logic                  beat_valid,
    input  logic                  beat_ready,
    output port_beat_t            beat
);
  typedef enum logic [2:0] {
    IDLE,
    FETCH,
    MESSAGE,
    ELEMENT,
    KEY,
    ASK,
    REFUSE
  } state_t;

  // A piece of a question that was asked for, or that the question is refused.
  typedef struct packed {
    port_tag_t   tag;
    // Beats of the whole question.
    logic [6:0]  beats;
    logic [12:0] length;
    logic        is_last;
    logic        is_refused;
  } piece_t;

  // Questions, pieces and beats that have a place here.
  localparam int unsigned QUESTIONS = 64;
  localparam int unsigned PIECES = 64;
  localparam int unsigned BEATS = 512;
  localparam int unsigned BEAT_BITS = $clog2(BEATS);
  // Of a question at most: a piece of each element, and the refusal behind them.
  localparam int unsigned MOST_PIECES = 17;
  localparam int unsigned MOST_BEATS = 64;

  state_t                state;
  port_transfer_t        t;
  logic           [31:0] pdn;
  ring_t                 ring;
  logic           [ 4:0] log2;
  logic           [63:0] address;
  qp_place_t             asked_place;
  logic           [ 4:0] at;
  logic                  goes_on;
  // Bytes before the next piece of the message, or of its element; bytes that are still to be asked for.
  logic           [31:0] skip;
  logic           [12:0] left;
  logic           [12:0] length;

  // ---- What is looked at

  logic           [35:0] end_of_bytes;
  logic           [31:0] ring_bytes;
  logic           [31:0] inline_start;
  logic           [31:0] inline_to_end;
  logic           [31:0] sge_left;
  logic                  is_remote;

  assign end_of_bytes  = 36'(t.offset) + 36'(t.length);
  assign ring_bytes    = 32'd64 << log2;
  assign inline_start  = ((message.index << 6) + WQE_SEND_PAYLOAD_OFFSET + skip) & (ring_bytes - 32'd1);
  assign inline_to_end = ring_bytes - inline_start;
  assign sge_left      = sge.length - skip;
  assign is_remote     = t.payload == PORT_PAYLOAD_REMOTE && t.access == PORT_ACCESS_READ;

  // The beats of so many bytes.
  function automatic logic [6:0] beats_of(input logic [12:0] bytes);
    return 7'((bytes + 13'd63) >> 6);
  endfunction

  // ---- Pieces that are asked for

  logic   is_asked;
  piece_t asked;
  logic   has_piece;
  logic   has_piece_room;
  piece_t piece;
  logic   ends_piece;

  assign read_valid = state == ASK;
  assign read_address = address[47:0];
  assign read_length = 28'(length);
  assign is_asked = (read_valid && read_ready) || state == REFUSE;
  assign asked = '{
          tag: t.tag,
          beats: beats_of(t.length),
          length: length,
          is_last: state == REFUSE || length == left,
          is_refused: state == REFUSE
      };

  balboa_fifo #(
      .Width($bits(piece_t)),
      .Depth(PIECES)
  ) pieces (
      .clk,
      .rst_n,
      .in_valid (is_asked),
      .in_ready (has_piece_room),
      .in_data  (asked),
      .out_valid(has_piece),
      .out_ready(ends_piece),
      .out_data (piece)
  );

  // ---- Bytes that come

  logic       [12:0] came;
  logic       [ 6:0] recv_bytes;
  // Faults of pieces that have not ended, and whether a piece of this question had one.
  logic       [ 6:0] faults;
  logic              has_failed;
  logic              comes;
  logic              fails;
  logic              drops;
  logic              pack_ready;
  logic              pack_has_last;
  logic              pack_valid;
  port_tag_t         pack_tag;
  port_beat_t        pack_out;

  assign recv_bytes = piece.length - came >= 13'd64 ? 7'd64 : 7'(piece.length - came);
  assign comes      = has_piece && !piece.is_refused && faults == '0;
  assign recv_ready = comes && (has_failed || pack_ready);
  // What the aligner has of the question before leaves first.
  assign fails      = has_piece && (piece.is_refused || faults != '0) && !pack_has_last;
  assign ends_piece = fails || (recv_valid && recv_ready && recv.last);
  assign drops      = ends_piece && piece.is_last && (fails || has_failed);

  balboa_pack pack (
      .clk,
      .rst_n(rst_n && !drops),
      .in_valid(recv_valid && comes && !has_failed),
      .in_ready(pack_ready),
      .in_data(recv.data),
      .in_bytes(recv_bytes),
      .in_last(recv.last && piece.is_last),
      .has_last(pack_has_last),
      .out_valid(pack_valid),
      .out_ready(1'b1),
      .out(pack_out)
  );

  // ---- Beats that are kept until all of their question are there: a fault may still refuse it

  port_beat_t               beats        [BEATS];
  logic       [BEAT_BITS:0] kept;
  logic       [BEAT_BITS:0] whole;
  logic       [BEAT_BITS:0] given;
  // Beats that have a place, or will need one.
  logic       [BEAT_BITS:0] promised;
  logic       [        6:0] pieces_here;
  logic       [        6:0] questions;
  logic                     is_answered;
  logic                     gives;
  logic                     answers_room;
  logic                     gives_beat;
  logic                     is_whole;

  assign is_whole = pack_valid && pack_out.last;

  balboa_fifo #(
      .Width($bits(port_fetched_t)),
      .Depth(QUESTIONS)
  ) answers (
      .clk,
      .rst_n,
      .in_valid (drops || is_whole),
      .in_ready (answers_room),
      .in_data  (drops ? {PORT_VERDICT_UNREACHABLE, piece.tag} : {PORT_VERDICT_DONE, pack_tag}),
      .out_valid(is_answered),
      .out_ready(fetched_ready && !gives),
      .out_data (fetched)
  );
  assign fetched_valid = is_answered && !gives;
  assign beat_valid = gives && given != whole;
  assign gives_beat = beat_valid && beat_ready;
  assign beat = beats[given[BEAT_BITS-1:0]];

  // There is room for all of a question before it is taken.
  assign has_room      = has_piece_room && answers_room && 32'(pieces_here) <= PIECES - MOST_PIECES &&
      32'(questions) < QUESTIONS && 32'(promised) <= BEATS - MOST_BEATS;
  assign is_idle = state == IDLE;
  assign is_quiet = is_idle && questions == '0 && !gives;

  always_ff @(posedge clk) begin
    if (pack_valid) beats[kept[BEAT_BITS-1:0]] <= pack_out;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      came        <= '0;
      faults      <= '0;
      has_failed  <= 1'b0;
      kept        <= '0;
      whole       <= '0;
      given       <= '0;
      promised    <= '0;
      pieces_here <= '0;
      questions   <= '0;
      gives       <= 1'b0;
    end else begin
      if (ends_piece) came <= '0;
      else if (recv_valid && recv_ready) came <= came + 13'(recv_bytes);
      faults <= faults + 7'(fault_valid) - 7'(fails && !piece.is_refused);
      if (ends_piece) has_failed <= !piece.is_last && (fails || has_failed);
      if (drops) kept <= whole;
      else if (pack_valid) kept <= kept + 1'b1;
      if (is_whole) whole <= kept + 1'b1;
      if (gives_beat) given <= given + 1'b1;
      promised <= promised + (asks ? (BEAT_BITS + 1)'(beats_of(
          ask.length
      )) : '0) - (drops ? (BEAT_BITS + 1)'(piece.beats) : '0) - (BEAT_BITS + 1)'(gives_beat);
      pieces_here <= pieces_here + 7'(is_asked) - 7'(ends_piece);
      questions <= questions + 7'(asks) - 7'(fetched_valid && fetched_ready);
      if (fetched_valid && fetched_ready) gives <= fetched.verdict == PORT_VERDICT_DONE;
      else if (gives_beat && beat.last) gives <= 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    if (recv_valid && recv_ready && recv.last && piece.is_last) pack_tag <= piece.tag;
  end

  // ---- One piece after the other

  assign asks_message = state == FETCH && has_found;
  assign place = state == FETCH ? found_place : asked_place;
  assign number = t.number;
  // The next element is looked at.
  assign goes_on = state == ELEMENT && !message.is_inline && skip >= sge.length;
  assign element = state == FETCH ? '0 : 4'(at + 5'(goes_on));
  assign uses_sge = state == ELEMENT && !message.is_inline && at != message.elements;

  // A key that is asked for has its answer in the state behind.
  always_comb begin
    key_asks       = (state == FETCH && has_found && is_remote) ||
        (state == ELEMENT && !message.is_inline && at != message.elements && skip < sge.length);
    key_ask.key = t.rkey;
    key_ask.pdn = found.pdn;
    key_ask.va = t.address;
    key_ask.length = 32'(t.length);
    key_ask.right = KEY_ACCESS_REMOTE_READ;
    if (state == ELEMENT) begin
      key_ask.key    = sge.lkey;
      key_ask.pdn    = pdn;
      key_ask.va     = sge.address + 64'(skip);
      key_ask.length = sge_left < 32'(left) ? sge_left : 32'(left);
      key_ask.right  = '0;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        FETCH: begin
          state <= REFUSE;
          if (has_found && t.payload == PORT_PAYLOAD_MESSAGE) state <= MESSAGE;
          // In RESET it has no peer.
          if (has_found && is_remote && found.state != QP_STATE_RESET) state <= KEY;
        end
        MESSAGE:
        state <= is_current && !message.has_failed && message.opcode != CQE_OPCODE_READ &&
            end_of_bytes <= 36'(message.length) ? ELEMENT : REFUSE;
        ELEMENT: begin
          if (message.is_inline) state <= ASK;
          else if (at == message.elements || !is_sge_there) state <= REFUSE;
          else if (skip < sge.length) state <= KEY;
        end
        KEY: state <= key_open ? ASK : REFUSE;
        ASK: if (read_ready) state <= length == left ? IDLE : ELEMENT;
        REFUSE: state <= IDLE;
        default: state <= asks ? FETCH : IDLE;
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (asks) t <= ask;
    case (state)
      FETCH: begin
        asked_place <= found_place;
        pdn         <= found.pdn;
        ring        <= found.ring;
        log2        <= found.log2;
        skip        <= t.offset;
        left        <= t.length;
        at          <= '0;
        // Of memory that a peer READs it is one piece.
        length      <= t.length;
      end
      ELEMENT: begin
        if (message.is_inline) begin
          // It stands in the ring, which its owner keeps until the completion.
          length  <= inline_to_end < 32'(left) ? inline_to_end[12:0] : left;
          address <= entries_of(ring) + 64'(inline_start);
        end else if (skip >= sge.length) begin
          skip <= skip - sge.length;
          at   <= at + 5'd1;
        end else begin
          length <= sge_left < 32'(left) ? sge_left[12:0] : left;
        end
      end
      KEY:     address <= key_iova;
      ASK:
      if (read_ready) begin
        left <= left - length;
        skip <= skip + 32'(length);
      end
      default: ;
    endcase
  end
endmodule
