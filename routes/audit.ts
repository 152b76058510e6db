/** The audit trail, for admins. */
import { Type } from 'typebox'
import type { App, RouteDeps } from './app.ts'
import { Id, Instant, Json, listOf, Paging, pageOf } from './schemas.ts'

const Record = Type.Object(
  {
    id: Id,
    at: Instant,
    owner: Type.String({ description: 'Who did it' }),
    act: Type.String({ description: 'Such as key.create, connector.update, credential.delete' }),
    subject: Type.String({ description: 'The id of what it was done to' }),
    details: Json,
  },
  { title: 'AuditRecord' },
)

export function auditRoutes(app: App, { store }: RouteDeps): void {
  app.get(
    '/audit',
    {
      config: { admin: true },
      schema: {
        operationId: 'listAuditRecords',
        summary: 'List acts of administration',
        description: 'What became of keys, credentials and connectors, and by whom. For admins.',
        querystring: Paging,
        response: { 200: listOf(Record) },
      },
    },
    (request) => store.audit.list(pageOf(request.query)),
  )
}
