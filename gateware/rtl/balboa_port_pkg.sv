// Port N: the records on the wires between a queue engine and a transport of messages below it.
//
// docs/gateware-port.md says what each channel means and which way it goes, and has the levels beside them. Numbers of the
// contract (states, types, codes) are those of balboa_card_pkg.
`ifndef BALBOA_PORT_PKG_SV
`define BALBOA_PORT_PKG_SV

package balboa_port_pkg;
  import balboa_card_pkg::*;

  // A module need not use all of the package.
  /* verilator lint_off UNUSEDPARAM */

  // Bytes of a beat of payload.
  localparam int unsigned PORT_BEAT_BYTES = 64;

  // Names a question until it is answered.
  typedef logic [7:0] port_tag_t;
  typedef logic [23:0] port_qpn_t;
  // Messages of a QP count from 0 on since RESET; so do its receives.
  typedef logic [31:0] port_number_t;

  // ---- Commands about QPs and the port

  typedef enum logic [3:0] {
    // A QP in RESET, of attributes.type_ and client page.
    PORT_COMMAND_CREATE,
    // Attributes that the engine has checked; attributes.state is the state to go to.
    PORT_COMMAND_MODIFY,
    // The QP's attributes come back.
    PORT_COMMAND_QUERY,
    // No message, report, fetch or place of the QP follows the answer.
    PORT_COMMAND_DESTROY,
    // An entry of the GID table, of the index attributes.sgid_index: attributes.dgid and number, a VLAN.
    PORT_COMMAND_SET_GID,
    // The same entry becomes empty.
    PORT_COMMAND_CLEAR_GID,
    // The port's attributes come back in the first block.
    PORT_COMMAND_QUERY_PORT,
    // Counters from the one of that number on come back, up to sixteen of them, with zeros behind the last.
    PORT_COMMAND_QUERY_COUNTERS,
    // The port goes to its cable (number 1) or off it (0).
    PORT_COMMAND_SET_LINK
  } port_command_operation_t;

  typedef struct packed {
    qp_attributes_t          attributes;
    logic [15:0]             number;
    qp_type_t                kind;
    logic [7:0]              page;
    port_qpn_t               qpn;
    port_command_operation_t operation;
    port_tag_t               tag;
  } port_command_t;

  typedef struct packed {
    // Counters from the first that was asked for on, also those that do not come with this answer.
    logic [15:0]    counters;
    qp_attributes_t attributes;
    admin_status_t  status;
    port_tag_t      tag;
  } port_command_done_t;

  // ---- Messages of the engine's own

  typedef struct packed {
    logic [31:0]      rkey;
    logic [63:0]      remote_address;
    logic [31:0]      immediate;
    logic [31:0]      length;
    // Begin only when all earlier READs are complete.
    logic             fence;
    logic             solicited;
    wqe_send_opcode_t operation;
    port_qpn_t        qpn;
  } port_submit_t;

  // So many more messages are taken.
  typedef struct packed {
    logic [15:0] messages;
    port_qpn_t   qpn;
  } port_room_t;

  // ---- Questions about a peer's requests

  typedef enum logic {
    PORT_ACCESS_WRITE,
    PORT_ACCESS_READ
  } port_access_t;

  typedef struct packed {
    logic [31:0]  length;
    logic [63:0]  address;
    logic [31:0]  rkey;
    port_access_t access;
    port_qpn_t    qpn;
    port_tag_t    tag;
  } port_check_t;

  typedef enum logic [2:0] {
    PORT_VERDICT_DONE,
    // The right is not the QP's: the peer's request is invalid.
    PORT_VERDICT_INVALID_REQUEST,
    // No such key, or not that memory or right: the peer's access is denied.
    PORT_VERDICT_DENIED,
    // No receive is posted: the peer is to try later.
    PORT_VERDICT_EMPTY,
    // The receive that is next makes no sense: the peer's operation fails.
    PORT_VERDICT_INVALID_RECEIVE,
    // Memory is out of reach, or the QP is gone.
    PORT_VERDICT_UNREACHABLE
  } port_verdict_t;

  typedef struct packed {
    port_verdict_t verdict;
    port_tag_t     tag;
  } port_checked_t;

  typedef struct packed {
    port_qpn_t qpn;
    port_tag_t tag;
  } port_claim_t;

  typedef struct packed {
    // Bytes that the receive can hold.
    logic [31:0]   capacity;
    port_number_t  receive;
    port_verdict_t verdict;
    port_tag_t     tag;
  } port_claimed_t;

  // ---- Payload

  typedef enum logic [1:0] {
    // Local memory of the message `number`: fetched for SEND and WRITE, placed for READ.
    PORT_PAYLOAD_MESSAGE,
    // Memory of the receive `number`.
    PORT_PAYLOAD_RECEIVE,
    // Memory that a peer named, from `address` on; the key is looked up anew.
    PORT_PAYLOAD_REMOTE
  } port_payload_t;

  // A question for bytes, and one that brings them.
  typedef struct packed {
    // At least 1, at most the path MTU.
    logic [12:0]          length;
    // From the message's first byte; of remote memory it is in `address` already.
    logic [31:0]          offset;
    logic [63:0]          address;
    logic [31:0]          rkey;
    port_number_t         number;
    port_access_t access;
    port_payload_t        payload;
    port_qpn_t            qpn;
    port_tag_t            tag;
  } port_transfer_t;

  // Bytes of one transfer; each begins at byte 0 of its first beat.
  typedef struct packed {
    logic [511:0] data;
    // How many bytes count, 1 to 64; less than 64 in the last beat alone.
    logic [6:0]   bytes;
    logic         last;
  } port_beat_t;

  // The head of an answer to a fetch. Its beats follow, unless the verdict is another than DONE.
  typedef struct packed {
    port_verdict_t verdict;
    port_tag_t     tag;
  } port_fetched_t;

  typedef struct packed {
    port_verdict_t verdict;
    port_tag_t     tag;
  } port_placed_t;

  // ---- What became of messages and QPs, in the order of a QP

  typedef enum logic [2:0] {
    // The oldest `count` messages of the QP ended well.
    PORT_REPORT_ENDED,
    // The oldest message failed with `status`, and the QP is in ERR.
    PORT_REPORT_FAILED,
    // The oldest claimed receive was filled: commit it. In ERR all may be flushed before that comes.
    PORT_REPORT_COMMIT,
    // The oldest claimed receive failed with `status`, and the QP is in ERR.
    PORT_REPORT_RECEIVE_FAILED,
    // The QP went to ERR without a failing request.
    PORT_REPORT_ERROR,
    // The driver should hear of `event_`.
    PORT_REPORT_EVENT,
    // The port went up (count 1) or down (0).
    PORT_REPORT_LINK
  } port_report_kind_t;

  typedef struct packed {
    event_qp_event_t   event_;
    cqe_status_t       status;
    logic              solicited;
    logic              has_immediate;
    // A WRITE with immediate, else a SEND.
    logic              is_write;
    logic [31:0]       immediate;
    // Messages, or the bytes of the one that came.
    logic [31:0]       count;
    port_qpn_t         qpn;
    port_report_kind_t kind;
  } port_report_t;

  /* verilator lint_on UNUSEDPARAM */
endpackage

`endif
