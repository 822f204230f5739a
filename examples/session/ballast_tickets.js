// Session tickets that name this server, for Node.js behind Ballast.
//
//   const tickets = require('./ballast_tickets')
//   const server = https.createServer(options, answer)
//   tickets.install(server, '/run/ballast/tickets/default/web.json')
//
// Node has no hook for names of tickets that is documented: server.setTicketKeys() takes one name, and forgets the sessions of the name before. This one is
// of its tests. Contexts of SNICallback need it as well: tickets.prepare(context, path). Sessions of one server resume at another only if both have the same
// sessionIdContext, which is a hash of the command line unless it is set. Tested with 20.
'use strict'

const crypto = require('crypto')
const fs = require('fs')

const FOLLOW_PERIOD = 1000 // milliseconds
const WORD = (1n << 64n) - 1n

function rotateLeft (x, bits) { return (x << bits | x >> 64n - bits) & WORD }

// SipHash-2-4 (Aumasson and Bernstein, Indocrypt 2012, section 2).
function siphash (key, message) {
  const padded = Buffer.alloc(message.length - message.length % 8 + 8)
  message.copy(padded)
  padded[padded.length - 1] = message.length
  let [v0, v1, v2, v3] = [key[0] ^ 0x736f6d6570736575n, key[1] ^ 0x646f72616e646f6dn, key[0] ^ 0x6c7967656e657261n, key[1] ^ 0x7465646279746573n]
  const rounds = (number) => {
    while (number--) {
      v0 = v0 + v1 & WORD; v1 = rotateLeft(v1, 13n) ^ v0; v0 = rotateLeft(v0, 32n)
      v2 = v2 + v3 & WORD; v3 = rotateLeft(v3, 16n) ^ v2
      v0 = v0 + v3 & WORD; v3 = rotateLeft(v3, 21n) ^ v0
      v2 = v2 + v1 & WORD; v1 = rotateLeft(v1, 17n) ^ v2; v2 = rotateLeft(v2, 32n)
    }
  }
  for (let at = 0; at < padded.length; at += 8) {
    const word = padded.readBigUInt64LE(at)
    v3 ^= word
    rounds(2)
    v0 ^= word
  }
  v2 ^= 0xffn
  rounds(4)
  return v0 ^ v1 ^ v2 ^ v3
}

function readKey (digits) {
  const key = Buffer.from(digits, 'hex')
  if (key.length !== 32) throw new Error('a key has not 32 bytes')
  return key
}

// Keys of one ticket: Node encrypts by AES-128-CBC and HMAC-SHA256, both with 16 bytes.
function derive (sessions, name, purpose) {
  return crypto.createHmac('sha256', sessions).update(name).update('node ' + purpose).digest().subarray(0, 16)
}

// The second half of an IV, which is random for those without the key: it says by which key a ticket is.
function hint (sessions, name, iv) {
  return crypto.createHmac('sha256', sessions).update(name).update(iv.subarray(0, 8)).digest().subarray(0, 8)
}

// The keys of an epoch.
class Epoch {
  constructor (idKey, ticketKey) {
    const [names, sessions] = [idKey, ticketKey].map(readKey)
    this.tagKey = [names.readBigUInt64LE(0), names.readBigUInt64LE(8)]
    this.hideKey = [names.readBigUInt64LE(16), names.readBigUInt64LE(24)]
    this.sessions = sessions
  }

  tag (nonce, id) {
    const message = Buffer.alloc(10)
    nonce.copy(message)
    message.writeUInt16BE(id, 8)
    return siphash(this.tagKey, message) >> 16n
  }

  pad (name) { return Number(siphash(this.hideKey, name.subarray(0, 14)) & 0xffffn) }

  // nonce | tag | hidden id
  seal (id) {
    const name = Buffer.alloc(16)
    const nonce = crypto.randomFillSync(name, 0, 8).subarray(0, 8)
    name.writeBigUInt64BE(this.tag(nonce, id) << 16n, 8)
    name.writeUInt16BE(id ^ this.pad(name), 14)
    return name
  }

  opens (name) {
    const id = name.readUInt16BE(14) ^ this.pad(name)
    return id !== 0 && this.tag(name.subarray(0, 8), id) === name.readBigUInt64BE(8) >> 16n
  }
}

// Makes and reads tickets by the file that `ballast agent` keeps, and follows it. A file that is damaged or gone changes nothing.
class Tickets {
  constructor (path) {
    this.path = path
    this.read()
    this.looked = Date.now()
  }

  read () {
    const stamp = fs.statSync(this.path)
    const said = JSON.parse(fs.readFileSync(this.path))
    const epochs = [new Epoch(said.id_key, said.ticket_key)]
    if (said.id_key_before || said.ticket_key_before) epochs.push(new Epoch(said.id_key_before, said.ticket_key_before))
    if (!Number.isInteger(said.server_id) || said.server_id < 1 || said.server_id > 65535) throw new Error('server_id is no number from 1 to 65535')
    const keys = (said.ticket_keys || []).map(readKey)
    this.server = said.server_id
    this.epochs = epochs
    this.keys = keys
    this.stamp = `${stamp.ino} ${stamp.mtimeMs}`
  }

  follow () {
    if (Date.now() - this.looked < FOLLOW_PERIOD) return
    this.looked = Date.now()
    try {
      const stamp = fs.statSync(this.path)
      if (`${stamp.ino} ${stamp.mtimeMs}` !== this.stamp) this.read()
    } catch {}
  }

  // What OpenSSL asks: which keys a ticket is made or read by. 2: it is read, and the client gets another one; 0: it is not ours.
  callback (name, iv, encrypt) {
    this.follow()
    if (encrypt) {
      const epoch = this.epochs[0]
      name = epoch.seal(this.server)
      iv = crypto.randomBytes(8)
      iv = Buffer.concat([iv, hint(epoch.sessions, name, iv)])
      return [1, derive(epoch.sessions, name, 'mac'), derive(epoch.sessions, name, 'aes'), name, iv]
    }
    const epoch = this.epochs.find(epoch => epoch.opens(name))
    if (!epoch) return [0, Buffer.alloc(16), Buffer.alloc(16)]
    const key = this.keys.find(key => hint(key, name, iv).equals(iv.subarray(8))) || epoch.sessions
    return [2, derive(key, name, 'mac'), derive(key, name, 'aes')]
  }
}

// Lets a context (of tls.createSecureContext) issue such tickets.
function prepare (secureContext, path) {
  const { context } = secureContext
  if (typeof context.enableTicketKeyCallback !== 'function') throw new Error('this Node.js has no ticket key callback')
  const tickets = new Tickets(path)
  context.onticketkeycallback = (...asked) => tickets.callback(...asked)
  context.enableTicketKeyCallback()
}

// Lets a server of tls or https issue such tickets. server.setSecureContext() undoes it.
function install (server, path) { prepare(server._sharedCreds, path) }

module.exports = { install, prepare, Tickets }
