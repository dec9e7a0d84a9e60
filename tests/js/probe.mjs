// Dials the address it is given, pings it, asks for identify, and prints one line of JSON.
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

// Node 20 lacks it, and packages of these versions call it.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}

const node = await createLibp2p({
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { ping: ping(), identify: identify({ runOnConnectionOpen: false }) }
})
const address = multiaddr(process.argv[2])
const connection = await node.dial(address)
const pinged = await node.services.ping.ping(address)
const found = await node.services.identify.identify(connection)
console.log(JSON.stringify({
  rtt_ms: pinged,
  peer: found.peerId.toString(),
  protocols: found.protocols,
  addresses: found.listenAddrs.map(String)
}))
await node.stop()
