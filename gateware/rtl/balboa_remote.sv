// What comes from peers: the check of a whole message, and bytes for the memory that it names, or that a receive or a READ
// of one's own does.
//
// A question for a place takes a turn until all its writes are asked for. Their bytes come later; a place has its verdict
// once its writes have ended, in the order of the questions.
module balboa_remote
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                  clk,
    input  logic                  rst_n,
    // A question; one of them at a time. There is room for one more place, and none is under way.
    input  logic                  checks,
    input  port_check_t           check,
    input  logic                  places,
    input  port_transfer_t        place,
    output logic                  is_idle,
    output logic                  has_room,
    output logic                  is_quiet,
    // Its queue pair.
    input  logic                  has_found,
    input  qp_place_t             found_place,
    input  qp_t                   found,
    // The message, or the receive, that it is of, and an element of that: what is named stands in the next cycle.
    output logic                  asks_message,
    output qp_place_t             message_place,
    output port_number_t          number,
    output logic           [ 3:0] element,
    input  logic                  is_current,
    input  message_t              message,
    output logic                  uses_message_sge,
    input  logic                  is_message_sge_there,
    input  wqe_sge_t              message_sge,
    input  logic                  is_claimed,
    input  receive_t              receive,
    output logic                  uses_receive_sge,
    input  logic                  is_receive_sge_there,
    input  wqe_sge_t              receive_sge,
    // Keys.
    output logic                  key_asks,
    output key_ask_t              key_ask,
    input  logic                  key_open,
    input  logic           [63:0] key_iova,
    // Host memory.
    output logic                  write_valid,
    input  logic                  write_ready,
    output logic           [47:0] write_address,
    output logic           [27:0] write_length,
    output logic                  send_valid,
    input  logic                  send_ready,
    output host_beat_t            send,
    // The oldest write has ended, or is out of reach.
    input  logic                  written,
    input  logic                  fault_valid,
    // The transport.
    output logic                  checked_valid,
    input  logic                  checked_ready,
    output port_checked_t         checked,
    input  logic                  beat_valid,
    output logic                  beat_ready,
    input  port_beat_t            beat,
    output logic                  placed_valid,
    input  logic                  placed_ready,
    output port_placed_t          placed
);
  typedef enum logic [3:0] {
    IDLE,
    CHECK,
    CHECK_KEY,
    CHECKED,
    PLACE,
    MESSAGE,
    ELEMENT,
    KEY,
    ASK,
    REFUSE
  } state_t;

  // A piece of a question whose write was asked for, or that the question is refused.
  typedef struct packed {
    port_tag_t   tag;
    logic [12:0] length;
    logic        is_last;
    logic        is_refused;
  } piece_t;

  // Pieces that have a place here, and those of a question at most: one of each element, and the refusal behind them.
  localparam int unsigned PIECES = 64;
  localparam int unsigned MOST_PIECES = 17;

  state_t                state;
  port_check_t           k;
  port_transfer_t        t;
  port_verdict_t         verdict;
  logic           [31:0] access;
  logic           [31:0] pdn;
  logic           [63:0] address;
  qp_place_t             asked_place;
  logic           [ 4:0] at;
  logic                  goes_on;
  // Bytes before the next piece of its element; bytes whose writes are still to be asked for.
  logic           [31:0] skip;
  logic           [12:0] left;
  logic           [12:0] length;
  logic           [31:0] sge_left;
  logic           [35:0] end_of_bytes;

  logic                  is_receive;
  logic                  is_sge_there;
  wqe_sge_t              sge;
  logic           [ 4:0] elements;
  logic                  takes_bytes;
  logic                  is_remote;
  logic           [31:0] check_right;

  assign is_receive   = t.payload == PORT_PAYLOAD_RECEIVE;
  assign sge          = is_receive ? receive_sge : message_sge;
  assign is_sge_there = is_receive ? is_receive_sge_there : is_message_sge_there;
  assign elements     = is_receive ? receive.elements : message.elements;
  assign sge_left     = sge.length - skip;
  assign end_of_bytes = 36'(t.offset) + 36'(t.length);
  assign is_remote    = t.payload == PORT_PAYLOAD_REMOTE && t.access == PORT_ACCESS_WRITE;
  assign check_right  = k.access == PORT_ACCESS_READ ? KEY_ACCESS_REMOTE_READ : KEY_ACCESS_REMOTE_WRITE;
  always_comb begin
    takes_bytes = is_current && !message.has_failed && message.opcode == CQE_OPCODE_READ &&
        end_of_bytes <= 36'(message.length);
    if (is_receive) takes_bytes = is_claimed && !receive.has_failed && end_of_bytes <= 36'(receive.capacity);
  end

  // ---- Pieces whose writes are asked for

  logic   is_asked;
  piece_t asked;
  logic   has_piece;
  logic   has_piece_room;
  piece_t piece;
  logic   gives_last;
  logic   ends_piece;

  assign write_valid = state == ASK;
  assign write_address = address[47:0];
  assign write_length = 28'(length);
  assign is_asked = (write_valid && write_ready) || state == REFUSE;
  assign asked = '{
          tag: t.tag,
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

  // ---- Bytes

  logic       out_valid;
  logic       out_ready;
  port_beat_t out;
  // The piece is one of the aligner's; the last beat of its question was taken.
  logic       has_begun;
  logic       has_last;
  logic       feeds;
  logic       drains;
  logic       unpack_ready;
  port_beat_t piece_beat;

  balboa_fifo #(
      .Width($bits(port_beat_t)),
      .Depth(4)
  ) beats (
      .clk,
      .rst_n,
      .in_valid(beat_valid),
      .in_ready(beat_ready),
      .in_data (beat),
      .out_valid,
      .out_ready,
      .out_data(out)
  );
  balboa_unpack unpack (
      .clk,
      .rst_n(rst_n && !(ends_piece && piece.is_last)),
      .in_valid(feeds && out_valid),
      .in_ready(unpack_ready),
      .in(out),
      .begins(has_piece && !piece.is_refused && !has_begun),
      .length(piece.length),
      .out_valid(send_valid),
      .out_ready(send_ready),
      .out(piece_beat)
  );
  // Beats of the next question wait behind the last one of this. Those of one that is refused are dropped.
  assign feeds      = has_piece && !piece.is_refused && !has_last;
  assign drains     = has_piece && piece.is_refused && !has_last;
  assign out_ready  = (feeds && unpack_ready) || drains;
  assign gives_last = send_valid && send_ready && piece_beat.last;
  assign ends_piece = gives_last || (has_piece && piece.is_refused && (has_last || (out_valid && out.last)));
  assign send       = '{last: piece_beat.last, keep: keep_of(28'(piece_beat.bytes)), data: piece_beat.data};

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      has_begun <= 1'b0;
      has_last  <= 1'b0;
    end else begin
      has_begun <= has_piece && !piece.is_refused && !ends_piece;
      if (ends_piece && piece.is_last) has_last <= 1'b0;
      else if (out_valid && out_ready && out.last) has_last <= 1'b1;
    end
  end

  // ---- Ends of writes, and verdicts

  piece_t       oldest;
  logic         has_oldest;
  logic         has_end_room;
  logic         has_result;
  logic         has_result_room;
  logic         is_out_of_reach;
  logic         has_failed;
  logic         ends;
  logic         takes_result;
  // Those that lack bytes, and those that have not ended.
  logic   [6:0] pieces_here;
  logic   [6:0] ends_here;

  // Each piece until it has ended.
  balboa_fifo #(
      .Width($bits(piece_t)),
      .Depth(PIECES)
  ) ends_left (
      .clk,
      .rst_n,
      .in_valid (is_asked),
      .in_ready (has_end_room),
      .in_data  (asked),
      .out_valid(has_oldest),
      .out_ready(ends),
      .out_data (oldest)
  );
  // How writes ended. A refusal before them may still wait for its answer to be taken.
  balboa_fifo #(
      .Width(1),
      .Depth(PIECES)
  ) results (
      .clk,
      .rst_n,
      .in_valid (written || fault_valid),
      .in_ready (has_result_room),
      .in_data  (fault_valid),
      .out_valid(has_result),
      .out_ready(takes_result),
      .out_data (is_out_of_reach)
  );
  assign ends = has_oldest && (oldest.is_refused || has_result) && !(oldest.is_last && placed_valid);
  assign takes_result = ends && !oldest.is_refused;
  // There is room for all of a question before it is taken.
  assign has_room = has_piece_room && has_end_room && has_result_room && 32'(pieces_here) <= PIECES - MOST_PIECES &&
      32'(ends_here) <= PIECES - MOST_PIECES;
  assign is_quiet = is_idle && !has_piece && !has_oldest && !placed_valid;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      has_failed   <= 1'b0;
      placed_valid <= 1'b0;
      pieces_here  <= '0;
      ends_here    <= '0;
    end else begin
      if (ends) has_failed <= !oldest.is_last && (has_failed || is_out_of_reach);
      if (ends && oldest.is_last) placed_valid <= 1'b1;
      else if (placed_ready) placed_valid <= 1'b0;
      pieces_here <= pieces_here + 7'(is_asked) - 7'(ends_piece);
      ends_here   <= ends_here + 7'(is_asked) - 7'(ends);
    end
  end

  always_ff @(posedge clk) begin
    if (ends && oldest.is_last) begin
      placed.tag     <= oldest.tag;
      placed.verdict <= PORT_VERDICT_DONE;
      if (oldest.is_refused || has_failed || is_out_of_reach) placed.verdict <= PORT_VERDICT_UNREACHABLE;
    end
  end

  // ---- Answers

  assign checked_valid = state == CHECKED;
  assign checked = '{verdict: verdict, tag: k.tag};

  // ---- One thing after the other

  assign is_idle = state == IDLE;
  assign asks_message = state == PLACE && has_found;
  assign message_place = state == PLACE ? found_place : asked_place;
  assign number = t.number;
  // The next element is looked at.
  assign goes_on = state == ELEMENT && skip >= sge.length;
  assign element = state == PLACE ? '0 : 4'(at + 5'(goes_on));
  assign uses_message_sge = state == ELEMENT && !is_receive && at != elements;
  assign uses_receive_sge = state == ELEMENT && is_receive && at != elements;

  // A key that is asked for has its answer in the state behind.
  always_comb begin
    key_asks       = has_found && (state == CHECK || (state == PLACE && is_remote));
    key_ask.key    = t.rkey;
    key_ask.pdn    = found.pdn;
    key_ask.va     = t.address;
    key_ask.length = 32'(t.length);
    key_ask.right  = KEY_ACCESS_REMOTE_WRITE;
    if (state == CHECK) begin
      key_ask.key    = k.rkey;
      key_ask.va     = k.address;
      key_ask.length = k.length;
      key_ask.right  = check_right;
    end
    if (state == ELEMENT) begin
      key_asks       = at != elements && skip < sge.length;
      key_ask.key    = sge.lkey;
      key_ask.pdn    = pdn;
      key_ask.va     = sge.address + 64'(skip);
      key_ask.length = sge_left < 32'(left) ? sge_left : 32'(left);
      key_ask.right  = KEY_ACCESS_LOCAL_WRITE;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        CHECK: state <= has_found ? CHECK_KEY : CHECKED;
        CHECK_KEY: state <= CHECKED;
        CHECKED: if (checked_ready) state <= IDLE;
        PLACE: begin
          state <= REFUSE;
          if (has_found && (t.payload == PORT_PAYLOAD_MESSAGE || is_receive)) state <= MESSAGE;
          // In RESET it has no peer.
          if (has_found && is_remote && found.state != QP_STATE_RESET) state <= KEY;
        end
        MESSAGE: state <= takes_bytes ? ELEMENT : REFUSE;
        ELEMENT: begin
          if (at == elements || !is_sge_there) state <= REFUSE;
          else if (skip < sge.length) state <= KEY;
        end
        KEY: state <= key_open ? ASK : REFUSE;
        ASK: if (write_ready) state <= length == left ? IDLE : ELEMENT;
        REFUSE: state <= IDLE;
        default: begin
          if (checks) state <= CHECK;
          else if (places) state <= PLACE;
          else state <= IDLE;
        end
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (checks) k <= check;
    if (places) t <= place;
    case (state)
      CHECK: begin
        access  <= found.access;
        verdict <= PORT_VERDICT_UNREACHABLE;
      end
      CHECK_KEY: begin
        if ((access & check_right) == '0) verdict <= PORT_VERDICT_INVALID_REQUEST;
        else verdict <= k.length == '0 || key_open ? PORT_VERDICT_DONE : PORT_VERDICT_DENIED;
      end
      PLACE: begin
        asked_place <= found_place;
        pdn         <= found.pdn;
        skip        <= t.offset;
        left        <= t.length;
        at          <= '0;
        // Memory that a peer WRITEs is one piece.
        length      <= t.length;
      end
      MESSAGE: if (is_receive) pdn <= receive.pdn;
      ELEMENT: begin
        if (skip >= sge.length) begin
          skip <= skip - sge.length;
          at   <= at + 5'd1;
        end else begin
          length <= sge_left < 32'(left) ? sge_left[12:0] : left;
        end
      end
      KEY:     address <= key_iova;
      ASK:
      if (write_ready) begin
        left <= left - length;
        skip <= skip + 32'(length);
      end
      default: ;
    endcase
  end
endmodule
