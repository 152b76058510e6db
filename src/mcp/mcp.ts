/** The one door to MCP servers: connections, discovery, calls. Nothing outside src/mcp/ names the SDK. */
export * from './contract.ts'
